"""The agent's drivers, watched: each does what it did, and says when. Only where telemetry is on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from nvrx_async.etcd import EtcdError
from nvrx_async.etcd.types import Listing, Txn, TxnResult
from nvrx_async.job.records import Assignment, Node
from nvrx_async.ranklink.page import H_FIRST_STEP, H_HELLO, H_SECOND_STEP, NS, PageView
from nvrx_async.rounds.drivers import Ranks, Store
from nvrx_async.rounds.events import PortReserved, Proven, RanksHeld
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.rank_watch import RankWatch
from nvrx_launcher.rank_watch_round import WatchedRound
from nvrx_launcher.tracing_observer import RanksLook
from nvrx_launcher.tracing_rank_starts import RankStart
from nvrx_launcher.wrapped_store import WrappedStore


class Witness(Protocol):
    """What drivers say. No call of these raises."""

    def requested(self, operation: str, began_s: float, *, success: bool) -> None:
        """A request to etcd was answered."""

    def committed(self, txn: Txn) -> None:
        """A transaction took effect."""

    def released(self, number: int) -> None:
        """Ranks are ordered to start."""

    def explaining(self, number: int) -> None:
        """Evidence of a hang is being taken."""

    def stopping(self, number: int) -> None:
        """Ranks are told to stop."""

    def prepared(self, assignment: Assignment, folders: Mapping[int, Path]) -> dict[int, dict[str, str]]:
        """Ranks are about to start, and log to these folders; returns what to add to their environments."""

    def rank_started(self, number: int, local_rank: int) -> None:
        """A rank has a process."""

    def rank_ended(self, number: int, local_rank: int, start: RankStart) -> None:
        """A rank has none any more. `start`: how far it had come."""

    def ranks_left(self, number: int, starts: Mapping[int, RankStart]) -> None:
        """Ranks are watched no longer, however they ended. `starts`: how far they had come, by local rank."""

    def lost_output(self, lost_bytes: int) -> None:
        """Output of ranks was lost."""

    def now_s(self) -> float:
        """Seconds of CLOCK_BOOTTIME."""


class WatchedStore(WrappedStore):
    """Says how long requests take, and what was committed."""

    def __init__(self, store: Store, witness: Witness) -> None:
        super().__init__(store)
        self._witness = witness

    async def relist(self) -> tuple[Listing, ...]:
        """See `Store`."""
        began_s, success = self._witness.now_s(), False
        try:
            listings = await self.inner.relist()
            success = True
        finally:
            self._witness.requested("list", began_s, success=success)
        return listings

    async def commit(self, txn: Txn) -> TxnResult:
        """See `Store`."""
        began_s = self._witness.now_s()
        try:
            result = await self.inner.commit(txn)
        except EtcdError:
            self._witness.requested("txn", began_s, success=False)
            raise
        self._witness.requested("txn", began_s, success=True)
        if result.succeeded:
            self._witness.committed(txn)
        return result


class WatchedRanks:
    """Implements `nvrx_async.rounds.drivers.Ranks`."""

    def __init__(self, ranks: Ranks, witness: Witness) -> None:
        self._ranks = ranks
        self._witness = witness

    async def start(self, assignment: Assignment, generation: int) -> None:
        """See `Ranks`."""
        self._witness.released(assignment.round)
        await self._ranks.start(assignment, generation)

    def stop(self, number: int, *, grace: bool) -> None:
        """See `Ranks`."""
        self._ranks.stop(number, grace=grace)

    def kill_hung(self, number: int) -> None:
        """See `Ranks`."""
        self._ranks.kill_hung(number)
        self._witness.explaining(number)

    async def hold(self, number: int) -> RanksHeld:
        """See `Ranks`."""
        return await self._ranks.hold(number)

    def stop_at(self, number: int, step: int | None) -> None:
        """See `Ranks`."""
        self._ranks.stop_at(number, step)

    async def reserve_port(self, number: int) -> PortReserved:
        """See `Ranks`."""
        return await self._ranks.reserve_port(number)

    async def prove(self, node: Node) -> Proven:
        """See `Ranks`."""
        return await self._ranks.prove(node)


class TracedWatch(RankWatch):
    """The watch over ranks, which also says what it sees of their processes, and gives them their trace."""

    witness: Witness

    def prepare(self, assignment: Assignment, folders: Mapping[int, Path]) -> dict[int, dict[str, str]]:
        """See `RankWatch`."""
        linked = super().prepare(assignment, folders)
        traced = self.witness.prepared(assignment, folders)
        return {one: {**linked.get(one, {}), **traced.get(one, {})} for one in folders}

    def started(self, number: int, local_rank: int, pid: int) -> None:
        """See `RankWatch`."""
        super().started(number, local_rank, pid)
        self.witness.rank_started(number, local_rank)

    def halt(self, number: int) -> None:
        """See `RankWatch`."""
        super().halt(number)
        self.witness.stopping(number)

    def lost_output(self, lost_bytes: int) -> None:
        """See `RankWatch`."""
        self.witness.lost_output(lost_bytes)

    def ended(self, number: int, local_rank: int) -> None:
        """See `RankWatch`."""
        super().ended(number, local_rank)
        self.witness.rank_ended(number, local_rank, self._starts(number).get(local_rank, RankStart()))

    def _close(self) -> None:
        # Nobody sees each rank end where their keeper dies, or where this agent is made to leave at once.
        if self._round is not None:
            number = self._round.assignment.round
            self.witness.ranks_left(number, self._starts(number))
        super()._close()

    # For the telemetry --------------------------------------------------------------------------------

    @property
    def folders(self) -> dict[int, Path]:
        """Log folders of the ranks of this round, by local rank."""
        return dict(self._round.folders) if self._round is not None else {}

    def silent_since_s(self, number: int, rank: int) -> float | None:
        """When a rank that was found hung began what it does not end, in seconds of CLOCK_BOOTTIME."""
        watched = self._of(number)
        if watched is None:
            return None
        finding = watched.hung.get(rank - watched.assignment.seat.first_rank)
        return None if finding is None else finding.since_s + boottime_s() - time.monotonic()

    def look(self, number: int) -> RanksLook:
        """The ranks of this node as they are now."""
        watched = self._of(number)
        views = list(watched.views().values()) if watched is not None else []
        ages = [view.at_s - max(thread.last_s for thread in view.threads) for view in views if view.threads]
        return RanksLook(
            number,
            marks=self.marks(number),
            starts=self._starts(number),
            step=max((view.step for view in views if view.step is not None), default=None),
            states=_states(watched, views),
            oldest_report_s=max(ages, default=None),
        )

    def _starts(self, number: int) -> dict[int, RankStart]:
        """How far each rank has come with its start."""
        watched = self._of(number)
        offset_s = boottime_s() - time.monotonic()

        def seconds(ns: int) -> float | None:
            return ns / NS + offset_s if ns > 0 else None

        return {
            local_rank: RankStart(
                *(seconds(page.words[word]) for word in (H_HELLO, H_FIRST_STEP, H_SECOND_STEP))
            )
            for local_rank, page in (watched.pages.items() if watched is not None else ())
        }


def _states(watched: WatchedRound | None, views: Sequence[PageView]) -> dict[str, int]:
    """How many ranks that have a process are starting, ready and hung."""
    if watched is None:
        return {"starting": 0, "ready": 0, "hung": 0}
    ready, hung = sum(view.is_ready for view in views), len(watched.hung)
    return {"starting": max(len(watched.pids) - ready, 0), "ready": max(ready - hung, 0), "hung": hung}
