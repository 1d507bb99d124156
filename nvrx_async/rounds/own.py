"""What the member machine remembers of its own: ranks, registration, the commit under way."""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Assignment, FaultKind, Node, RankEnd


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

    @property
    def round(self) -> int:
        """The round they belong to."""
        return self.assignment.round

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
