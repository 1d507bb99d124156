"""The agent's telemetry: a service beside all others, and the one place that knows both rounds and OpenTelemetry.

What happens is watched where it passes (`tracing_observer`, `tracing_drivers`), made into spans and metrics by
pure code (`tracing_round`), and sent by threads that nobody waits for (`nvrx_telemetry`). Whatever fails here ends
the telling, with one warning.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from nvrx_async.job.records import Assignment
from nvrx_async.rounds.drivers import Ranks, Store
from nvrx_async.rounds.effects import Machine, Notice, Registered
from nvrx_async.rounds.events import Renewed
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.config import LaunchConfig
from nvrx_launcher.keeper import processes
from nvrx_launcher.rank_watch import RankWatch
from nvrx_launcher.tracing_drivers import TracedWatch, WatchedRanks, WatchedStore
from nvrx_launcher.tracing_logs import LogCount
from nvrx_launcher.tracing_observer import NOTHING, Observer
from nvrx_launcher.tracing_off import Tracing, Untraced
from nvrx_launcher.tracing_ranks import names_service, rank_resource, rank_variables
from nvrx_launcher.tracing_round import NS, About
from nvrx_launcher.tracing_scrape import serve_metrics
from nvrx_launcher.tracing_spools import RankSpools
from nvrx_telemetry import semconv, spool_line
from nvrx_telemetry.groups import is_on
from nvrx_telemetry.metrics import Metrics
from nvrx_telemetry.model import FinishedSpan, Value
from nvrx_telemetry.pipe import GIVE_UP_S, LAST_SEND_S, SpanPipe
from nvrx_telemetry.setup import TelemetryConfig, span_exporter, without_password
from nvrx_telemetry.traceparent import SpanName, derived_span_id, derived_trace_id
from nvrx_telemetry.trouble import Trouble

AGENT = "nvrx.ft_launcher"
"""`service.name` of agents, unless OTEL_SERVICE_NAME says otherwise."""
FLUSH_WITHIN_S = 0.5
"""After a fault, so soon at the latest spans are on their way; agents have done their part of a restart by then."""
SWITCH_S = 0.0005
_LONGEST_TICK_S = 5.0
LAST_LOOK_S = 0.1
"""An end takes two seconds at most: a last look, what ranks left, and then the collector."""
SPOOLS_END_S = 0.4
"""So long at most it takes to read what ranks left, a full spool 0.15 s."""


class Traced:
    """Telemetry that is on. Implements `Tracing`, `tracing_observer.Told` and `tracing_drivers.Witness`."""

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
        self._trouble = Trouble(without_password(config.endpoint) or "the collector", warn)
        self._metrics = Metrics(config, self._resource, self._trouble)
        self._pipe = self._make_pipe() if config.traces is not None else None
        self._observer: Observer | None = None
        self._watch: TracedWatch | None = None
        self._spools = RankSpools(self.emit, self._now_ns, self._fails)
        self._starting: set[int] = set()
        self._log = LogCount()
        self._dropped = 0
        self._broken = self._measures = False
        # A thread that imports or encodes hands over after half a millisecond, not after five, when the agent's loop
        # has work: else each of a restart's twenty wake-ups would wait for it.
        sys.setswitchinterval(SWITCH_S)

    def _make_pipe(self) -> SpanPipe:
        return SpanPipe(
            self._connect,
            delay_s=self._config.delay_s,
            queue=self._config.queue,
            batch=self._config.batch,
            worked=self._trouble.worked,
            failed=self._trouble.failed,
        )

    def _connect(self) -> Any:
        # In the thread that sends: the agent does not wait for these imports.
        from nvrx_async import __version__  # noqa: PLC0415 - beside the import below
        from nvrx_telemetry.sender import SdkSender, take_over_log  # noqa: PLC0415

        take_over_log(self._trouble.heard)
        return SdkSender(span_exporter(self._config), self._resource, __version__)

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
        self._observer = Observer(about, mirror, self, boottime_s(), self._silent_since)
        return (Onlooker(self._observer, self._safely),)

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
        if self._observer is not None:
            self._safely(self._observer.notice, notice, boottime_s())

    def renewed(self, sent_at_s: float) -> None:
        """See `Tracing`."""
        self.requested("keepalive", sent_at_s, success=True)

    def tagged(self, sentence: str) -> str:
        """See `Tracing`."""
        current = self._observer.round if self._observer is not None else None
        if current is None:
            return sentence
        name = current.named(semconv.CYCLE_START)
        return f"{sentence} trace_id={name.trace_id:032x} span_id={name.span_id:016x}"

    async def serve(self) -> None:
        """See `Tracing`. Looks at the ranks once in so long as spans are gathered."""
        self._tell_of_start()
        async with anyio.create_task_group() as tasks:
            if self._config.metrics_port is not None:
                tasks.start_soon(serve_metrics, self._config.metrics_port, self._scraped, self._warn)
            next_s = anyio.current_time()
            while True:
                next_s += min(self._config.delay_s, _LONGEST_TICK_S)
                await anyio.sleep_until(next_s)
                await self._look()
                next_s = max(next_s, anyio.current_time() - _LONGEST_TICK_S)

    async def close(self) -> None:
        """See `Tracing`."""
        with anyio.move_on_after(LAST_LOOK_S, shield=True):
            await self._measure()
        self._end_life()
        self._trouble.ends()
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._close_spans)
                tasks.start_soon(self._close_metrics)

    async def _close_spans(self) -> None:
        if not await anyio.to_thread.run_sync(self._spools.close, SPOOLS_END_S):
            self._warn("telemetry: what ranks told was not read in time; the last of it is lost")
        if self._pipe is not None and not await anyio.to_thread.run_sync(self._pipe.close):
            self._trouble.failed()

    async def _close_metrics(self) -> None:
        lost = await anyio.to_thread.run_sync(self._metrics.close, LAST_SEND_S + GIVE_UP_S)
        if lost:
            self._warn(f"no metrics are sent: {lost}")

    # What the observer tells --------------------------------------------------------------------------

    def emit(self, span: FinishedSpan) -> None:
        """Send a span if it is wanted."""
        if (
            self._pipe is not None
            and is_on(span.name, self._config.groups)
            and self._config.sampling.takes(span.trace_id)
        ):
            self._pipe.put(span)

    def flush(self) -> None:
        """Have what is known sent soon, though not in the way of the restart that has just begun."""
        if self._pipe is not None:
            self._pipe.flush(FLUSH_WITHIN_S)

    def measure(self, name: str, value: float, attributes: Mapping[str, Value]) -> None:
        """Add to a metric."""
        self._metrics.add(name, value, attributes)

    # What drivers tell --------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Seconds of CLOCK_BOOTTIME."""
        return boottime_s()

    def requested(self, operation: str, began_s: float, *, success: bool) -> None:
        """A request to etcd was answered."""
        attributes = {semconv.ATTR_OPERATION: operation, semconv.ATTR_SUCCESS: success}
        self._safely(self._metrics.add, semconv.METRIC_ETCD, boottime_s() - began_s, attributes)

    def committed(self, keys_written: frozenset[str]) -> None:
        """A transaction took effect."""
        if self._observer is not None:
            self._safely(self._observer.committed, keys_written, boottime_s())

    def released(self, number: int) -> None:
        """Ranks are ordered to start."""
        if self._observer is not None:
            self._safely(self._observer.released, number, boottime_s())

    def explaining(self, number: int) -> None:
        """Evidence of a hang is being taken."""
        if self._observer is not None:
            self._safely(self._observer.explaining, number, boottime_s())

    def stopping(self, number: int) -> None:
        """Ranks are told to stop."""
        if self._observer is not None:
            self._safely(self._observer.stopping, number, boottime_s())

    def prepared(self, assignment: Assignment, local_ranks: frozenset[int]) -> dict[int, dict[str, str]]:
        """Ranks are about to start: their trace, their resource, and where their spans go."""
        environments: dict[int, dict[str, str]] = {}
        self._safely(self._prepare, assignment, local_ranks, environments)
        return environments

    def rank_started(self, number: int, local_rank: int) -> None:
        """A rank has a process."""
        observer = self._observer
        if observer is None:
            return
        self._safely(observer.rank_began, local_rank, boottime_s())
        if self._watch is not None and local_rank in self._watch.folders:
            self._log.begin(self._watch.folders[local_rank])
        self._starting.discard(local_rank)
        if not self._starting:
            self._safely(observer.started, number, boottime_s())

    def rank_ended(self, number: int, local_rank: int) -> None:
        """A rank has none any more: what it left is safe from now on."""
        del number
        self._spools.ended(local_rank)

    # Inside -------------------------------------------------------------------------------------------

    def _prepare(
        self, assignment: Assignment, local_ranks: frozenset[int], environments: dict[int, dict[str, str]]
    ) -> None:
        current = self._observer.round if self._observer is not None else None
        self._spools.retire()
        self._starting = set(local_ranks)
        if current is None or current.number != assignment.round:
            return
        above = current.named(semconv.RUN_START)
        sampled = self._pipe is not None and self._config.sampling.takes(above.trace_id)
        for local_rank in local_ranks:
            resource = rank_resource(self._launch, self._environment, self._node_id, assignment, local_rank)
            environments[local_rank] = rank_variables(
                above,
                sampled=sampled,
                epoch_ns=self._epoch_ns,
                now_ns=self._now_ns(),
                resource=resource,
                environment=self._environment,
            )
            if sampled:
                # Without a descriptor the rank's own spans are missing, nothing else.
                with suppress(OSError):
                    environments[local_rank][spool_line.VARIABLE] = self._spools.open(local_rank, resource)

    def _now_ns(self) -> int:
        return self._epoch_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    async def _look(self) -> None:
        """What is now: spans that ranks left, how far they are, what gauges show."""
        # Not at once: the imports would slow the start of the job.
        await self._start_metrics()
        await self._measure()

    async def _measure(self) -> None:
        self._spools.look()
        self._safely(self._look_at_ranks)
        self._safely(self._count_dropped)
        await self._count_log()
        await anyio.to_thread.run_sync(self._metrics.settle, abandon_on_cancel=True)

    def _look_at_ranks(self) -> None:
        observer, watch = self._observer, self._watch
        if observer is None or watch is None or observer.round is None:
            return
        current, now_s = observer.round, boottime_s()
        marks = watch.marks(current.number)
        observer.trains(marks)
        current.goes_on(now_s, watch.step(current.number))
        total_s = now_s - self._began_s
        good = observer.trained_s(now_s, marks) / total_s if total_s > 0 else 0.0
        self._metrics.gauges(semconv.METRIC_GOODPUT, [(min(good, 1.0), {})])
        self._metrics.gauges(semconv.METRIC_ROUND, [(current.number, {})])
        states = watch.states(current.number)
        told = [(count, {semconv.ATTR_STATE: state}) for state, count in states.items()]
        self._metrics.gauges(semconv.METRIC_RANKS, told)
        age_s = watch.oldest_report_s(current.number)
        self._metrics.gauges(semconv.METRIC_BEAT_AGE, [] if age_s is None else [(age_s, {})])

    def _count_dropped(self) -> None:
        if self._pipe is not None and self._pipe.dropped > self._dropped:
            self._metrics.add(semconv.METRIC_SPANS_DROPPED, self._pipe.dropped - self._dropped)
            self._dropped = self._pipe.dropped

    async def _count_log(self) -> None:
        new_bytes = await self._log.new_bytes(self._folders)
        if new_bytes > 0:
            self._metrics.add(semconv.METRIC_LOG_SPOOLED, new_bytes)

    def _folders(self) -> Iterable[Path]:
        return self._watch.folders.values() if self._watch is not None else ()

    def lost_output(self, lost_bytes: int) -> None:
        """Output of ranks that no disk took."""
        self._metrics.add(semconv.METRIC_LOG_DROPPED, lost_bytes)

    async def _scraped(self) -> str:
        await self._look()
        return await anyio.to_thread.run_sync(self._metrics.exposition, abandon_on_cancel=True)

    async def _start_metrics(self) -> None:
        wanted = self._config.metrics is not None or self._config.metrics_port is not None
        if self._measures or not wanted:
            return
        self._measures = True
        lost = await anyio.to_thread.run_sync(self._metrics.start, abandon_on_cancel=True)
        if lost:
            self._warn(f"no metrics are sent: {lost}")

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
            self.emit(FinishedSpan(name, *me, None, start_ns, end_ns, attributes))

    def _silent_since(self, number: int, rank: int) -> float | None:
        return self._watch.silent_since_s(number, rank) if self._watch is not None else None

    def _end_life(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            self._safely(observer.finish, boottime_s())

    def _safely(self, job: Callable[..., object], *arguments: Any) -> None:
        """Law 8: what fails here is told once, and nothing more is told of rounds."""
        if self._broken:
            return
        try:
            job(*arguments)
        except Exception as error:  # noqa: BLE001 - outermost frame of a helper: training goes on
            self._fails(error)

    def _fails(self, error: Exception) -> None:
        if self._broken:
            return
        self._broken = True
        self._warn(f"telemetry ends here, by a bug of its own: {type(error).__name__}: {error}")


class Onlooker:
    """The observer as a machine that cannot fail, and wants nothing."""

    def __init__(self, observer: Observer, safely: Callable[..., None]) -> None:
        self._observer = observer
        self._safely = safely

    def scopes(self) -> Any:
        """See `Machine`."""
        return self._observer.scopes()

    def observe(self, event: Any, now: Any) -> None:
        """See `Machine`."""
        if not isinstance(event, Renewed):
            self._safely(self._observer.observe, event, now)

    def decide(self, now: Any) -> Any:
        """See `Machine`."""
        self._safely(self._observer.decide, now)
        return NOTHING


def begin_tracing(
    launch: LaunchConfig, environment: Mapping[str, str], warn: Callable[[str], None]
) -> Tracing:
    """Telemetry as the launch asks for it."""
    if launch.telemetry is None:
        return Untraced()
    node_id = launch.node.node_id or os.uname().nodename
    return Traced(launch.telemetry, launch, environment, node_id, warn)
