"""What the member machine remembers of its own: ranks and the commit under way."""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_async.job.records import Assignment, FaultKind, RankEnd
from nvrx_async.rounds.sentences import node_fault, rank_ended


@dataclass(frozen=True, slots=True)
class OwnFault:
    """Why this node ends a round. `end` is the rank's that failed, None where the node is to blame."""

    kind: FaultKind
    sentence: str
    end: RankEnd | None = None


@dataclass(slots=True)
class OwnRanks:
    """This node's ranks in one round. `gone`: none lives and all output was read; `stopping`: told to stop.

    `generation` names their keeper, None if they were never started.
    """

    assignment: Assignment
    generation: int | None = None
    ends: tuple[RankEnd, ...] = ()
    gone: bool = False
    unkillable: tuple[int, ...] = ()
    stopping: bool = False
    killing: bool = False
    keeper_lost: bool = False

    @property
    def round(self) -> int:
        """The round they belong to."""
        return self.assignment.round

    @property
    def finished(self) -> bool:
        """All ranks exited with 0."""
        return (
            self.gone
            and len(self.ends) == self.assignment.seat.slots
            and all(end.kind is None for end in self.ends)
        )

    def note_end(self, end: RankEnd) -> None:
        """A rank ended. Told again, or after all are gone, it says nothing new."""
        if not self.gone and all(known.local_rank != end.local_rank for known in self.ends):
            self.ends = (*self.ends, end)

    def note_gone(self, ends: tuple[RankEnd, ...], unkillable: tuple[int, ...]) -> None:
        """No rank lives, and this is all the evidence of their ends."""
        self.ends, self.unkillable, self.gone = ends, unkillable, True

    def fault(self, host: str) -> OwnFault | None:
        """The first fault of its own that this node shows; what we stopped has none."""
        if self.keeper_lost:
            return OwnFault(FaultKind.KEEPER_LOST, node_fault(FaultKind.KEEPER_LOST, host, ""))
        for end in self.ends:
            if end.kind is None or end.kind is FaultKind.STOPPED_BY_US:
                continue
            if end.kind.is_membership:
                return OwnFault(end.kind, node_fault(end.kind, host, end.detail))
            return OwnFault(end.kind, f"rank {end.rank} on {host} {rank_ended(end)}", end)
        if self.gone and not self.finished and not self.stopping:
            return OwnFault(FaultKind.START_FAILED, node_fault(FaultKind.START_FAILED, host, ""))
        return None


@dataclass(frozen=True, slots=True)
class InFlight:
    """The commit under way, and the round it speaks of. `joins`: it also joins that round."""

    tag: str
    round: int = -1
    joins: int = -1
