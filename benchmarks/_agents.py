"""Simulated agents: the real machines, interpreter, feed, session and client; only the ranks are none."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from nvrx_async.etcd import EtcdClient, EtcdConfig, Feed, Session
from nvrx_async.job.records import Assignment, EndedBy, FaultKind, JobSpec, Node, RankEnd
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import AskPeers, Extend, Rely
from nvrx_async.rounds.events import (
    Answered,
    Event,
    KeeperReady,
    PortReserved,
    Proof,
    Proven,
    RankEnded,
    RanksGone,
    RanksHeld,
    Renewed,
)
from nvrx_async.rounds.fencing import good_until
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.interpreter import Interpreter
from nvrx_async.rounds.member import Member
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.tolerance import Tolerance
from nvrx_launcher.clock import boottime_s, now, utc
from nvrx_launcher.store import EtcdStore
from nvrx_launcher.sweep import this_process

TTL_S = 300
"""Long: on a machine that others keep busy no agent shall give its lease up while hundreds share a processor."""
PER_CLIENT = 50
"""So many agents share one connection, which a real agent has for itself."""


@dataclass
class Stamps:
    """When the last agent got so far, per round (CLOCK_MONOTONIC, s); `started` counts agents."""

    told: dict[int, list[float]] = field(default_factory=dict)
    started: dict[int, list[float]] = field(default_factory=dict)


class NoRanks:
    """Implements `nvrx_async.rounds.drivers.Ranks`: everything works, at once."""

    def __init__(self, stamps: Stamps, on_start: Callable[[int], None]) -> None:
        self._stamps = stamps
        self._on_start = on_start
        self._running: Assignment | None = None
        self.tell: Callable[[Event], None] = lambda _event: None

    async def start(self, assignment: Assignment, generation: int) -> None:
        del generation
        self._running = assignment
        self._stamps.started.setdefault(assignment.round, []).append(time.monotonic())
        self._on_start(assignment.round)

    def stop(self, number: int, *, grace: bool) -> None:
        del grace
        self._stamps.told.setdefault(number, []).append(time.monotonic())
        running, self._running = self._running, None
        if running is not None:
            seat = running.seat
            ends = [
                end(seat.first_rank + i, i, FaultKind.STOPPED_BY_US, EndedBy.US) for i in range(seat.slots)
            ]
            self.tell(RanksGone(number, tuple(ends)))

    def kill_hung(self, number: int) -> None:
        self.stop(number, grace=False)

    async def hold(self, number: int) -> RanksHeld:
        return RanksHeld(number, None)

    def stop_at(self, number: int, step: int | None) -> None:
        del number, step

    def fail(self) -> float:
        """The last rank here is killed; returns when."""
        assert self._running is not None
        seat, at_s = self._running.seat, time.monotonic()
        failed = end(seat.first_rank + seat.slots - 1, seat.slots - 1, FaultKind.SIGNAL, EndedBy.SOMEONE_ELSE)
        self.tell(RankEnded(self._running.round, failed))
        return at_s

    async def reserve_port(self, number: int) -> PortReserved:
        return PortReserved(number, 20_000 + number)

    async def prove(self, node: Node) -> Proven:
        return Proven(node.incarnation, Proof.ALIVE, "")


class NoPeers:
    """Implements `nvrx_async.rounds.drivers.Peers` for a job whose ranks never outlive T: nobody is asked."""

    def __init__(self, session: Session, job: JobSpec) -> None:
        self._session = session
        self._job = job
        self.tell: Callable[[Event], None] = lambda _event: None

    def move_t(self, by: Rely | Extend) -> None:
        if isinstance(by, Rely):
            sent_at_s = self._session.renewed_at_s
            self.tell(Renewed(sent_at_s, good_until(sent_at_s, self._job.lease_ttl_s, self._job.kill_time_s)))

    async def ask(self, asking: AskPeers) -> Answered:
        return Answered(asking.sent_at_s, "answers no questions")


def end(rank: int, local_rank: int, kind: FaultKind, by: EndedBy) -> RankEnd:
    return RankEnd(
        rank, local_rank, 100 + local_rank, kind, by, signal=9, ready=True, ran_s=99.0, ended_utc=utc()
    )


def spec(agents: int) -> JobSpec:
    return JobSpec(
        command=("train.py",),
        min_nodes=agents,
        max_nodes=agents,
        max_restarts=1_000,
        lease_ttl_s=TTL_S,
        kill_time_s=1.0,
        outage_limit_s=0.0,
        join_timeout_s=600.0,
        last_call_s=30.0,
    )


@asynccontextmanager
async def agents(
    endpoint: str,
    total: int,
    first: int,
    count: int,
    slots: int,
    stamps: Stamps,
    on_start: Callable[[int], None],
) -> AsyncIterator[list[NoRanks]]:
    """Agents `first` and so on of a job of `total`, in a task group of their own."""
    async with AsyncExitStack() as clients, anyio.create_task_group() as tasks:
        made = []
        for number in range(first, first + count):
            if (number - first) % PER_CLIENT == 0:
                client = await clients.enter_async_context(EtcdClient(EtcdConfig((endpoint,))))
            ranks = NoRanks(stamps, on_start)
            made.append(ranks)
            tasks.start_soon(_live, client, number, spec(total), ranks, slots, tasks)
        with contextlib.suppress(GeneratorExit):
            yield made
        tasks.cancel_scope.cancel()


async def _live(
    client: EtcdClient, number: int, job: JobSpec, ranks: NoRanks, slots: int, tasks: TaskGroup
) -> None:
    del tasks
    interpreter: Interpreter | None = None

    def renewed(sent_at_s: float) -> None:
        if interpreter is not None:
            interpreter.tell(Renewed(sent_at_s, good_until(sent_at_s, job.lease_ttl_s, job.kill_time_s)))

    async with Session(client, ttl_s=job.lease_ttl_s, clock=boottime_s, on_renewed=renewed) as session:
        session.orphan()
        async with Feed(client, silence_s=60) as feed:
            me = Identity(
                run_id="bench",
                node_id=f"n{number}",
                fixed_id=True,
                incarnation=secrets.token_hex(6),
                host=f"host-{number}",
                address="127.0.0.1",
                slots=slots,
                process=this_process(f"bench/{number}"),
                lease=session.lease_id,
            )
            mirror = Mirror()
            book = Book()
            member = Member(me, job, mirror, book)
            machines = (member, Coordinator(me, job, mirror, book), Tolerance(job, mirror, member, book))
            store = EtcdStore(client, feed)
            peers = NoPeers(session, job)
            interpreter = Interpreter(
                machines, mirror, store, ranks, now, lambda _: None, lambda _: None, peers=peers
            )
            ranks.tell = peers.tell = interpreter.tell
            interpreter.tell(KeeperReady(1))
            await interpreter.run()
