"""What a person has been told so far: the rounds of this launch as its notices tell them. A pure fold.

Times are seconds of CLOCK_BOOTTIME on this host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from nvrx_async.job.records import Ending
from nvrx_async.rounds.effects import (
    Finished,
    Interrupted,
    Judged,
    Notice,
    RankFailed,
    Registered,
    RoundRunning,
)
from nvrx_launcher.wording import how_it_ended

if TYPE_CHECKING:
    from nvrx_async.job.records import Outcome, Root

_STOPPED = frozenset({Ending.CANCELLED, Ending.PREEMPTED, Ending.TIME_LIMIT})


@dataclass(frozen=True, slots=True)
class RoundTold:
    """One round; `ended_s` is None while it runs, `why` says why it ended."""

    number: int
    nodes: int
    world_size: int
    started_s: float
    ended_s: float | None = None
    why: str = ""


class Times(NamedTuple):
    """How the time of a launch was spent, in seconds."""

    total_s: float
    starting_s: float
    training_s: float
    restarting_s: float
    closing_s: float


@dataclass(frozen=True, slots=True)
class Story:
    """A launch on this node, so far. `log_folder` is shown as it stands."""

    run_id: str
    max_restarts: int
    log_folder: str
    started_s: float
    attempt: int = 0
    rounds: tuple[RoundTold, ...] = ()
    root: Root | None = None

    def told(self, notice: Notice, now_s: float) -> Story:
        """The story with one notice more."""
        match notice:
            case Registered():
                return replace(self, attempt=notice.attempt)
            case RoundRunning():
                return self._begun(notice, now_s)
            case RankFailed():
                return self._ended(
                    notice.round,
                    now_s,
                    f"rank {notice.end.rank} on {notice.where} {how_it_ended(notice.end)}",
                )
            case Interrupted():
                return self._ended(notice.round, now_s, notice.reason)
            case Judged():
                story = self._ended(notice.end.number, now_s, notice.end.root.sentence, judged=True)
                return replace(story, root=notice.end.root)
            case Finished():
                return self._finished(notice.outcome, now_s)
            case _:
                return self

    def times(self, now_s: float) -> Times:
        """How the time until `now_s` was spent."""
        total = now_s - self.started_s
        if not self.rounds:
            return Times(total, total, 0.0, 0.0, 0.0)
        ends = [now_s if one.ended_s is None else one.ended_s for one in self.rounds]
        starting = self.rounds[0].started_s - self.started_s
        training = sum(end - one.started_s for one, end in zip(self.rounds, ends, strict=True))
        closing = now_s - ends[-1]
        return Times(total, starting, training, total - starting - training - closing, closing)

    def _begun(self, notice: RoundRunning, now_s: float) -> Story:
        if self.rounds and self.rounds[-1].number == notice.number:
            return self
        story = self._ended(self.rounds[-1].number, now_s, "a new round began") if self.rounds else self
        begun = RoundTold(notice.number, notice.nodes, notice.world_size, now_s)
        return replace(story, rounds=(*story.rounds, begun))

    def _finished(self, outcome: Outcome, now_s: float) -> Story:
        root = outcome.root
        why = root.sentence if root else "all ranks finished" if outcome.success else outcome.reason
        story = (
            self._ended(self.rounds[-1].number, now_s, why, judged=root is not None) if self.rounds else self
        )
        # What a round before ended of is not why somebody stopped the job.
        return replace(story, root=root or (None if outcome.ending in _STOPPED else self.root))

    def _ended(self, number: int, now_s: float, why: str, *, judged: bool = False) -> Story:
        """The first to say that a round is over says when; the verdict on it says why."""
        if not self.rounds or self.rounds[-1].number != number:
            return self
        last = self.rounds[-1]
        if last.ended_s is None:
            last = replace(last, ended_s=now_s, why=why)
        elif judged:
            last = replace(last, why=why)
        return replace(self, rounds=(*self.rounds[:-1], last))
