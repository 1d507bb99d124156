"""The agent's telemetry: a service beside all others, and the one place that knows both rounds and OpenTelemetry.

What happens is noted where it passes (`tracing_lookout`, `tracing_drivers`), which is all that a restart waits for. A
little later (`tracing_later`) it is made into spans and metrics by pure code (`tracing_observer`, `tracing_round`),
and sent by threads that nobody waits for (`tracing_outlet`). Whatever fails here ends the telling, with one warning.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVarTuple

import anyio

from nvrx_async.etcd.types import Txn
from nvrx_async.job.records import Assignment
from nvrx_async.rounds.drivers import Ranks, Store
from nvrx_async.rounds.effects import Machine, Notice, Registered
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.config import LaunchConfig
from nvrx_launcher.keeper import processes
from nvrx_launcher.rank_watch import RankWatch
from nvrx_launcher.tracing_drivers import TracedWatch, WatchedRanks, WatchedStore
from nvrx_launcher.tracing_later import Later
from nvrx_launcher.tracing_logs import LogCount
from nvrx_launcher.tracing_lookout import Lookout
from nvrx_launcher.tracing_observer import Observer
from nvrx_launcher.tracing_off import Tracing, Untraced
from nvrx_launcher.tracing_outlet import Outlet
from nvrx_launcher.tracing_rank_starts import RankStart
from nvrx_launcher.tracing_ranks import names_service, rank_resource, rank_variables
from nvrx_launcher.tracing_round import NS, About
from nvrx_launcher.tracing_scrape import serve_metrics
from nvrx_launcher.tracing_spools import RankSpools
from nvrx_telemetry import semconv, spool_line
from nvrx_telemetry.model import FinishedSpan, Value
from nvrx_telemetry.setup import TelemetryConfig
from nvrx_telemetry.traceparent import SpanName, derived_span_id, derived_trace_id
from nvrx_telemetry.turns import Turns

AGENT = "nvrx.ft_launcher"
"""`service.name` of agents, unless OTEL_SERVICE_NAME says otherwise."""
_LONGEST_TICK_S = 5.0
LAST_LOOK_S = 0.1
"""An end takes two seconds at most: a last look, what ranks left, and then the collector."""
LAST_CALLS_S = 0.4
"""So long at most it takes to tell the rest and to read what ranks left, a full spool 0.15 s."""

_REQUESTS = {
    (operation, success): {semconv.ATTR_OPERATION: operation, semconv.ATTR_SUCCESS: success}
    for operation in ("keepalive", "txn", "list")
    for success in (True, False)
}
Arguments = TypeVarTuple("Arguments")


class Traced:
    """Telemetry that is on. Implements `Tracing` and `tracing_drivers.Witness`."""

    def __init__(
        self,
        config: TelemetryConfig,
        launch: LaunchConfig,
        environment: Mapping[str, str],
        node_id: str,
        warn: Callable[[str], None],
    ) -> None:
        self._config = config
        self._launch = launch
        self._environment = environment
        self._node_id = node_id
        self._warn = warn
        self._began_s = boottime_s()
        self._epoch_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._resource: dict[str, Value] = {
            semconv.NODE: node_id,
            "service.instance.id": f"nvrx-agent-{node_id}-{os.getpid()}-{self._epoch_ns % 10**9:x}",
            "process.pid": os.getpid(),
            "host.name": os.uname().nodename,
        }
        if not names_service(environment):
            self._resource["service.name"] = AGENT
        turns = Turns()
        self._outlet = Outlet(config, self._resource, turns, warn)
        self._later = Later(self._fails, turns)
        self._spools = RankSpools(self._outlet.emit_of_rank, self._outlet.lost, self._now_ns, self._later)
        self._log = LogCount()
        self._lookout: Lookout | None = None
        self._watch: TracedWatch | None = None
        self._broken = False

    # For the agent ------------------------------------------------------------------------------------

    @property
    def watch_kind(self) -> type[RankWatch]:
        """See `Tracing`."""
        return TracedWatch

    def attend(self, watch: RankWatch) -> None:
        """See `Tracing`."""
        if isinstance(watch, TracedWatch):
            watch.witness = self
            self._watch = watch

    def life(self, me: Identity, mirror: Mirror) -> tuple[Machine, ...]:
        """See `Tracing`."""
        self._end_life()
        about = About(
            run_id=me.run_id,
            attempt=0,
            node_id=me.node_id,
            incarnation=me.incarnation,
            max_restarts=self._launch.job.max_restarts,
            infra_rank=me.order,
            epoch_ns=self._epoch_ns,
        )
        observer = Observer(about, self._outlet, boottime_s())
        self._lookout = Lookout(about, mirror, observer, self._tell, self._silent_since, self._fails)
        return (self._lookout,)

    def store(self, store: Store) -> Store:
        """See `Tracing`."""
        return WatchedStore(store, self)

    def ranks(self, ranks: Ranks) -> Ranks:
        """See `Tracing`."""
        return WatchedRanks(ranks, self)

    def notice(self, notice: Notice) -> None:
        """See `Tracing`."""
        if isinstance(notice, Registered):  # a second agent on a host has another id than it asked for
            self._node_id = self._resource[semconv.NODE] = notice.node.node_id
        if self._lookout is not None:
            self._lookout.notice(notice)

    def renewed(self, sent_at_s: float) -> None:
        """See `Tracing`."""
        self.requested("keepalive", sent_at_s, success=True)

    def tagged(self, sentence: str) -> str:
        """See `Tracing`."""
        return sentence if self._lookout is None else sentence + self._lookout.tag

    async def serve(self) -> None:
        """See `Tracing`. Looks at the ranks once in so long as spans are gathered."""
        self._tell_of_start()
        async with anyio.create_task_group() as tasks:
            if self._config.metrics_port is not None:
                tasks.start_soon(serve_metrics, self._config.metrics_port, self._scraped, self._warn)
            tasks.start_soon(self._later.serve)
            next_s = anyio.current_time()
            while True:
                next_s += min(self._config.delay_s, _LONGEST_TICK_S)
                await anyio.sleep_until(next_s)
                await self._look()
                if self._config.delay_s <= _LONGEST_TICK_S:
                    self._outlet.flush()  # what ranks left has been gathered for as long where it lay
                next_s = max(next_s, anyio.current_time() - _LONGEST_TICK_S)

    async def close(self) -> None:
        """See `Tracing`."""
        with anyio.move_on_after(LAST_LOOK_S, shield=True):
            await self._measure()
        self._end_life()
        self._spools.retire()  # last, it may be much: what this agent did is told before
        self._later.put(self._outlet.settle)  # what was dropped of it is counted
        self._outlet.ends()
        with anyio.move_on_after(LAST_CALLS_S, shield=True) as scope:
            await self._later.settle()
        if scope.cancelled_caught:
            self._warn("telemetry: what ranks told was not read in time; the last of it is lost")
        with anyio.CancelScope(shield=True):
            await self._outlet.close()

    # What drivers tell --------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Seconds of CLOCK_BOOTTIME."""
        return boottime_s()

    def requested(self, operation: str, began_s: float, *, success: bool) -> None:
        """A request to etcd was answered."""
        self._outlet.measure(semconv.METRIC_ETCD, boottime_s() - began_s, _REQUESTS[operation, success])

    def committed(self, txn: Txn) -> None:
        """A transaction took effect."""
        if self._lookout is not None:
            self._tell(self._lookout.observer.committed, txn, boottime_s())

    def released(self, number: int) -> None:
        """Ranks are ordered to start."""
        if self._lookout is not None:
            self._tell(self._lookout.observer.released, number, boottime_s())

    def explaining(self, number: int) -> None:
        """Evidence of a hang is being taken."""
        if self._lookout is not None:
            self._tell(self._lookout.observer.explaining, number, boottime_s())

    def stopping(self, number: int) -> None:
        """Ranks are told to stop."""
        if self._lookout is not None:
            self._tell(self._lookout.observer.stopping, number, boottime_s())

    def prepared(self, assignment: Assignment, folders: Mapping[int, Path]) -> dict[int, dict[str, str]]:
        """Ranks are about to start: their trace, their resource, and where their spans go."""
        self._spools.retire()
        for folder in folders.values():
            self._log.begin(folder)
        try:
            return self._prepare(assignment, folders)
        except Exception as error:  # noqa: BLE001 - outermost frame of a helper: ranks start without
            self._fails(error)
            return {}

    def rank_started(self, number: int, local_rank: int) -> None:
        """A rank has a process."""
        if self._lookout is not None:
            self._tell(self._lookout.observer.rank_began, number, local_rank, boottime_s())

    def rank_ended(self, number: int, local_rank: int, start: RankStart) -> None:
        """A rank has none any more: what it left is safe from now on."""
        self._spools.ended(local_rank)
        if self._lookout is not None:
            self._tell(self._lookout.observer.ranks_are, number, {local_rank: start})

    def ranks_left(self, number: int, starts: Mapping[int, RankStart]) -> None:
        """Ranks are watched no longer."""
        if self._lookout is not None:
            self._tell(self._lookout.observer.ranks_are, number, starts)

    def lost_output(self, lost_bytes: int) -> None:
        """Output of ranks that no disk took."""
        self._outlet.measure(semconv.METRIC_LOG_DROPPED, lost_bytes, {})

    # Inside -------------------------------------------------------------------------------------------

    def _prepare(self, assignment: Assignment, folders: Mapping[int, Path]) -> dict[int, dict[str, str]]:
        above = self._lookout.above_ranks(assignment.round) if self._lookout is not None else None
        if self._lookout is None or above is None or self._broken:
            return {}
        sampled = self._outlet.takes(above.trace_id)
        resources: dict[int, dict[str, Value]] = {}
        environments: dict[int, dict[str, str]] = {}
        for local_rank in folders:
            resource = rank_resource(self._launch, self._environment, self._node_id, assignment, local_rank)
            resources[local_rank] = resource
            environments[local_rank] = rank_variables(
                above if self._config.traces is not None else None,
                sampled=sampled,
                epoch_ns=self._epoch_ns,
                resource=resource,
                environment=self._environment,
            )
            if sampled:
                # Without a descriptor the rank's own spans are missing, nothing else.
                with suppress(OSError):
                    environments[local_rank][spool_line.VARIABLE] = self._spools.open(local_rank, resource)
        self._tell(self._lookout.observer.prepared, assignment.round, boottime_s(), resources)
        return environments

    def _tell(self, job: Callable[[*Arguments], object], *arguments: *Arguments) -> None:
        """Law 8: what fails is told once, and nothing more is told of rounds."""
        if not self._broken:
            self._later.put(job, *arguments)

    def _now_ns(self) -> int:
        return self._epoch_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    async def _look(self) -> None:
        """What is now: spans that ranks left, how far they are, what gauges show."""
        # Not at once: the imports would slow the start of the job.
        await self._outlet.start_metrics()
        self._spools.look()
        await self._measure()

    async def _measure(self) -> None:
        lookout, watch = self._lookout, self._watch
        if lookout is not None and watch is not None and lookout.number is not None:
            self._tell(lookout.observer.looked, watch.look(lookout.number), boottime_s())
        new_bytes = await self._log.new_bytes(self._folders)
        if new_bytes > 0:
            self._outlet.measure(semconv.METRIC_LOG_SPOOLED, new_bytes, {})
        self._later.put(self._outlet.settle)
        await self._later.settle()

    def _folders(self) -> Iterable[Path]:
        return self._watch.folders.values() if self._watch is not None else ()

    async def _scraped(self) -> str:
        await self._look()
        return await self._outlet.exposition()

    def _tell_of_start(self) -> None:
        """The agent's own start: each its own trace, as documented."""
        own = processes.read_stat(os.getpid())
        imports_s, ticks_per_s = self._launch.imports_began_s, os.sysconf("SC_CLK_TCK")
        if own is None or not imports_s:
            return
        start_s = min(own.start_ticks / ticks_per_s, imports_s)
        for name, from_s, to_s in (
            (semconv.STARTUP, start_s, imports_s),
            (semconv.IMPORTS, imports_s, self._began_s),
        ):
            instance = self._resource["service.instance.id"]
            me = SpanName(derived_trace_id(name, instance), derived_span_id(name, instance))
            start_ns, end_ns = (self._epoch_ns + round(moment_s * NS) for moment_s in (from_s, to_s))
            attributes: dict[str, Value] = {semconv.NODE: self._node_id}
            self._outlet.emit(FinishedSpan(name, *me, None, start_ns, end_ns, attributes))

    def _silent_since(self, number: int, rank: int) -> float | None:
        return self._watch.silent_since_s(number, rank) if self._watch is not None else None

    def _end_life(self) -> None:
        lookout, self._lookout = self._lookout, None
        if lookout is not None:
            self._tell(lookout.observer.finish, boottime_s())

    def _fails(self, error: Exception) -> None:
        if self._broken:
            return
        self._broken = True
        self._warn(f"telemetry ends here, by a bug of its own: {type(error).__name__}: {error}")


def begin_tracing(
    launch: LaunchConfig, environment: Mapping[str, str], warn: Callable[[str], None]
) -> Tracing:
    """Telemetry as the launch asks for it."""
    if launch.telemetry is None:
        return Untraced()
    node_id = launch.node.node_id or os.uname().nodename
    return Traced(launch.telemetry, launch, environment, node_id, warn)
