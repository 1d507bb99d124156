"""The hang monitor: a pure machine over pages and samples of one node's ranks in one round.

It is asked at moments that it named itself; in between nobody looks at anything. Three findings:

- *hung*: a deadline of `--hang-timeout` passed; or a learned one, and the rank stands still from outside as
  well; or all its threads were stopped by a signal for as long as the time-out.
- *suspect*: a rank that never reported stands still for the time-out; or one that works visibly is beyond
  its learned deadline. Told, with stacks; killed only if the person asked for it.
- nothing.

A pause of the machine or of this agent raises no alarm: what counts is time in which the agent lived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nvrx_async.hang.computed import learned, longest
from nvrx_async.hang.deadlines import Deadline, deadlines
from nvrx_async.hang.outside import Sample, Standing, first, following, restarted_at
from nvrx_async.hang.policy import Action, HangPolicy
from nvrx_async.ranklink.page import PageView

PAUSE_S = 5.0
"""A gap between two signs of this agent's own life beyond which the whole machine is taken to have paused.
To be at least twice the interval of its lease renewals, which are such signs."""

_LOOKS_PER_TIMEOUT = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """A rank that does not get on. `hung`: it is to be killed by the policy; `sentence` has no subject.

    `late_s`: how long ago its deadline was. `subject`: what it is late with; a second stall has another `since_s`.
    """

    local_rank: int
    hung: bool
    subject: str
    since_s: float
    limit_s: float
    sentence: str
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank at a look."""

    page: PageView
    sample: Sample


@dataclass(slots=True)
class _Rank:
    started_s: float
    standing: Standing | None = None
    told: set[tuple[str, float, bool]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look found, and when the next one is due (seconds of CLOCK_MONOTONIC)."""

    findings: tuple[Finding, ...]
    next_s: float


class HangMonitor:
    """See the module. One object for one round: nothing of a rank outlives it but the learned limits."""

    def __init__(
        self,
        policy: HangPolicy,
        ranks: Iterable[int],
        now_s: float,
        *,
        known: Mapping[str, float],
        expected: bool,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._policy = policy
        self._pause_s = pause_s
        self._ranks = {local_rank: _Rank(now_s) for local_rank in ranks}
        self._known = dict(known)
        self._expected = expected or policy.startup_given
        self._alive_s = now_s
        self._not_before_s = 0.0
        self.seen: dict[str, float] = {}

    @property
    def expected(self) -> bool:
        """Whether ranks of this job are known to report."""
        return self._expected

    def alive(self, now_s: float) -> None:
        """This agent lives at `now_s`; after a gap nothing that ran out in it counts."""
        if now_s - self._alive_s > self._pause_s:
            self._not_before_s = now_s
            for rank in self._ranks.values():
                if rank.standing is not None:
                    rank.standing = restarted_at(rank.standing, now_s)
        self._alive_s = max(self._alive_s, now_s)

    def ended(self, local_rank: int) -> None:
        """This rank's process is gone."""
        self._ranks.pop(local_rank, None)

    def look(self, now_s: float, due_s: float, seen: Mapping[int, Seen]) -> Look:
        """Judge all ranks. `due_s`: the moment this look was meant for; a late one was a pause, perhaps."""
        if now_s - due_s > self._pause_s:
            self._alive_s = min(self._alive_s, due_s)
            self.alive(now_s)
        self._alive_s = max(self._alive_s, now_s)
        self.learn([one.page for one in seen.values()])
        limits = learned(self._known, self.seen)
        findings: list[Finding] = []
        next_s = now_s + self._policy.timeout_s / _LOOKS_PER_TIMEOUT
        for local_rank, rank in self._ranks.items():
            if local_rank not in seen:
                continue
            page, sample = seen[local_rank].page, seen[local_rank].sample
            rank.standing = following(rank.standing, sample) if rank.standing else first(sample)
            late, wake_s = self._judge(local_rank, rank, page, now_s, limits)
            findings += late
            next_s = min(next_s, wake_s)
        return Look(tuple(findings), max(next_s, now_s))

    def learn(self, pages: Sequence[PageView]) -> None:
        """Take the maxima that these ranks have seen."""
        for key, value in longest(pages).items():
            self.seen[key] = max(self.seen.get(key, 0.0), value)
        self._expected = self._expected or any(page.principal or page.sections for page in pages)

    def _judge(
        self, local_rank: int, rank: _Rank, page: PageView, now_s: float, limits: Mapping[str, float]
    ) -> tuple[list[Finding], float]:
        """Findings about one rank, the first of them told as hung if several are, and when to look again."""
        due = deadlines(
            page,
            started_s=rank.started_s,
            expected=self._expected,
            limits=limits,
            policy=self._policy,
            not_before_s=self._not_before_s,
        )
        found: list[Finding] = []
        wakes: list[float] = []
        for deadline in sorted(due, key=lambda one: one.at_s):
            if deadline.at_s > now_s:
                probe_s = deadline.at_s - self._policy.probe_s
                wakes.append(probe_s if deadline.learned and probe_s > now_s else deadline.at_s)
                continue
            still = rank.standing is not None and rank.standing.still_for_s() >= self._policy.probe_s * 0.9
            found += self._tell(local_rank, rank, deadline, now_s, hung=not deadline.learned or still)
            if deadline.learned and not still:
                wakes.append(now_s + self._policy.floor_s)
        found += self._from_outside(local_rank, rank, now_s, wakes, spoken=bool(due))
        return found, min(wakes, default=float("inf"))

    def _from_outside(
        self, local_rank: int, rank: _Rank, now_s: float, wakes: list[float], *, spoken: bool
    ) -> list[Finding]:
        """What can be said of a rank without its help."""
        standing, timeout_s = rank.standing, self._policy.timeout_s
        if standing is None:
            return []
        if standing.stopped_since_s is not None:
            at_s = standing.stopped_since_s + timeout_s
            since_s, what, hung = standing.stopped_since_s, "is stopped by a signal (state T)", True
        elif not spoken:
            at_s = standing.still_since_s + timeout_s
            since_s, hung = standing.still_since_s, False
            what = "stands still: no CPU time, no output, no thread that changed its state"
        else:
            return []
        if at_s > now_s:
            wakes.append(at_s)
            return []
        late = Deadline(at_s, since_s, timeout_s, "outside", what)
        return self._tell(local_rank, rank, late, now_s, hung=hung)

    def _tell(
        self, local_rank: int, rank: _Rank, late: Deadline, now_s: float, *, hung: bool
    ) -> list[Finding]:
        """A finding, told once for each stall."""
        hung = (
            hung or self._policy.action is Action.KILL_SUSPECTS
        ) and self._policy.action is not Action.REPORT
        key = (late.subject, round(late.since_s, 2), hung)
        if key in rank.told:
            return []
        rank.told.add(key)
        return [
            Finding(
                local_rank, hung, late.subject, late.since_s, late.limit_s, late.sentence, now_s - late.at_s
            )
        ]
