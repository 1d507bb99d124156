"""What the member machine remembers of its own: ranks and the commit under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvrx_async.job.records import (
    IMPORTS,
    LIMITS,
    MARKS,
    PROGRESS,
    Assignment,
    Fault,
    FaultKind,
    Join,
    Mark,
    Node,
    RankEnd,
)
from nvrx_async.job.times import earlier
from nvrx_async.job.where import where
from nvrx_async.rounds.events import Now, RankEnded, RankHung, RanksGone
from nvrx_async.rounds.sentences import node_fault, rank_ended


@dataclass(frozen=True, slots=True)
class OwnFault:
    """Why this node ends a round. `end` and `rank` are those of the rank that failed, None where the node did.

    A rank that hangs has no end yet.
    """

    kind: FaultKind
    sentence: str
    end: RankEnd | None = None
    rank: int | None = None


@dataclass(slots=True)
class OwnRanks:
    """This node's ranks in one round. `gone`: none lives and all output was read; `stopping`: told to stop.

    `generation` names their keeper, None if they were never started. `marks`: when what happened.
    """

    assignment: Assignment
    generation: int | None = None
    ends: tuple[RankEnd, ...] = ()
    gone: bool = False
    unkillable: tuple[int, ...] = ()
    stopping: bool = False
    killing: bool = False
    keeper_lost: bool = False
    hung: RankHung | None = None
    learned: Mapping[str, float] = field(default_factory=dict)
    imports: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, float] = field(default_factory=dict)
    marks: dict[Mark, float] = field(default_factory=dict)

    @property
    def round(self) -> int:
        """The round they belong to."""
        return self.assignment.round

    @property
    def where(self) -> str:
        """This node, as people know it."""
        return where(self.assignment.seat.node_id, self.assignment.seat.host)

    @property
    def finished(self) -> bool:
        """All ranks exited with 0."""
        return (
            self.gone
            and len(self.ends) == self.assignment.seat.slots
            and all(end.kind is None for end in self.ends)
        )

    def mark(self, what: Mark, now: Now) -> None:
        """Something happened now; only the first time counts."""
        self.marks.setdefault(what, now.s)

    def note(self, event: RankEnded | RankHung | RanksGone, now: Now) -> None:
        """Something became known of these ranks."""
        match event:
            case RankEnded(end=end):
                self._note_end(end)
            case RanksGone():
                self._note_gone(event)
                self.mark(Mark.GONE, now)
            case RankHung():
                self.hung = self.hung or event
        if self.fault() is not None:
            self.mark(Mark.FAULT, now)

    def as_extra(self, now: Now) -> dict[str, Any]:
        """What a report or a done carries beside its own: limits, and marks as moments of the day.

        All are counted back from now: a step of the wall clock does not come between them.
        """
        marks = {**self.marks, Mark.REPORTED: now.s}
        moments = {f"{what.value}_utc": earlier(now.utc, now.s - at_s) for what, at_s in marks.items()}
        taught: dict[str, Any] = {LIMITS: self.learned, IMPORTS: self.imports, PROGRESS: self.progress}
        return {**{key: value for key, value in taught.items() if value}, MARKS: moments}

    def report(self, node: Node, now: Now, join: Join | None, *, leaves: bool, unfit: bool) -> Fault:
        """The final report on these ranks. `join` joins the next round; `unfit`: the node can join none."""
        kind = FaultKind.NODE_LEFT if leaves else FaultKind.KEEPER_LOST if self.keeper_lost else None
        return Fault(
            node.node_id,
            node.incarnation,
            node.host,
            self.ends,
            kind,
            unfit=unfit,
            join=join,
            extra=self.as_extra(now),
        )

    def _note_end(self, end: RankEnd) -> None:
        """A rank ended. Told again, or after all are gone, it says nothing new."""
        if not self.gone and all(known.local_rank != end.local_rank for known in self.ends):
            self.ends = (*self.ends, end)

    def _note_gone(self, event: RanksGone) -> None:
        """No rank lives, and this is all the evidence of their ends."""
        self.ends, self.unkillable, self.gone = event.ends, event.unkillable, True
        self.learned, self.imports, self.progress = event.learned, event.imports, event.progress
        self.marks = {**event.marks, **self.marks}

    def fault(self) -> OwnFault | None:
        """The first fault of its own that this node shows; what we stopped has none."""
        here = self.where
        if self.keeper_lost:
            return OwnFault(FaultKind.KEEPER_LOST, node_fault(FaultKind.KEEPER_LOST, here, ""))
        for end in self.ends:
            if end.kind is None or end.kind in (FaultKind.STOPPED_BY_US, FaultKind.HANG):
                continue
            if end.kind.is_membership:
                return OwnFault(end.kind, node_fault(end.kind, here, end.detail))
            return OwnFault(end.kind, f"rank {end.rank} on {here} {rank_ended(end)}", end, end.rank)
        if self.hung is not None:
            return OwnFault(
                FaultKind.HANG, f"rank {self.hung.rank} on {here} {self.hung.sentence}", rank=self.hung.rank
            )
        if self.gone and not self.finished and not self.stopping:
            return OwnFault(FaultKind.START_FAILED, node_fault(FaultKind.START_FAILED, here, ""))
        return None


@dataclass(frozen=True, slots=True)
class InFlight:
    """The commit under way, and the round it speaks of. `joins`: it also joins that round."""

    tag: str
    round: int = -1
    joins: int = -1

    def leaves(self, ranks: OwnRanks | None) -> OwnRanks | None:
        """What runs here once a report is known to be in etcd.

        Others may have gone on by it before its answer came, and ranks of the next round been started.
        """
        return ranks if ranks is not None and ranks.round > self.round else None
