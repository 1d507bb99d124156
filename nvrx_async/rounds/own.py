"""What the member machine remembers of its own: ranks, registration, the commit under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Assignment, FaultKind, Node, RankEnd
from nvrx_async.rounds.events import RankEnded, RankHung, RanksGone
from nvrx_async.rounds.sentences import node_fault, rank_ended


@dataclass(slots=True)
class OwnRanks:
    """This node's ranks in one round. `gone`: none lives and all output was read; `stopping`: told to stop."""

    assignment: Assignment
    ends: tuple[RankEnd, ...] = ()
    gone: bool = False
    unkillable: tuple[int, ...] = ()
    stopping: bool = False
    killing: bool = False
    keeper_lost: bool = False
    hung: RankHung | None = None
    learned: Mapping[str, float] = field(default_factory=dict)

    @property
    def round(self) -> int:
        """The round they belong to."""
        return self.assignment.round

    def note(self, event: RankEnded | RanksGone | RankHung) -> None:
        """Something became known of these ranks. What is final is not changed by what comes late."""
        match event:
            case RanksGone():
                self.ends, self.unkillable, self.gone = event.ends, event.unkillable, True
                self.learned = event.learned
            case RankHung():
                self.hung = self.hung or event
            case RankEnded(end=end) if not self.gone:
                if all(known.local_rank != end.local_rank for known in self.ends):
                    self.ends = (*self.ends, end)
            case _:
                pass

    @property
    def failure(self) -> RankEnd | None:
        """The first end that is a fault of its own."""
        return next((end for end in self.ends if end.kind not in (None, FaultKind.STOPPED_BY_US)), None)

    @property
    def finished(self) -> bool:
        """All ranks exited with 0."""
        return (
            self.gone
            and len(self.ends) == self.assignment.seat.slots
            and all(end.kind is None for end in self.ends)
        )


@dataclass(frozen=True, slots=True)
class OwnFault:
    """Why this agent ends a round. `end` and `rank` where it is one rank's fault."""

    kind: FaultKind
    sentence: str
    end: RankEnd | None = None
    rank: int | None = None


def fault_of(ranks: OwnRanks, host: str) -> OwnFault | None:
    """What of these ranks ends the round, None while nothing does."""
    if ranks.keeper_lost:
        return OwnFault(FaultKind.KEEPER_LOST, node_fault(FaultKind.KEEPER_LOST, host, ""))
    end, hung = ranks.failure, ranks.hung
    if end is not None and end.kind is not None and end.kind is not FaultKind.HANG:
        return OwnFault(end.kind, f"rank {end.rank} on {host} {rank_ended(end)}", end, end.rank)
    if hung is not None:
        return OwnFault(FaultKind.HANG, f"rank {hung.rank} on {host} {hung.sentence}", rank=hung.rank)
    if ranks.gone and not ranks.finished and not ranks.stopping:
        return OwnFault(FaultKind.START_FAILED, node_fault(FaultKind.START_FAILED, host, ""))
    return None


@dataclass(frozen=True, slots=True)
class Registration:
    """The attempt this agent is in, as what, and since which revision of etcd."""

    keys: AttemptKeys
    node: Node
    revision: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """The commit under way, and the round it speaks of. `joins`: it also joins that round."""

    tag: str
    round: int = -1
    joins: int = -1
