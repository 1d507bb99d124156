"""The hang monitor: a pure machine over pages and samples of one node's ranks in one round.

It is asked at moments that it named itself; in between nobody looks at anything. Three findings:

- *hung*: a deadline of `--hang-timeout` passed; or a learned one or that of its end, and the rank stands still from
  outside as well; or all its threads were stopped by a signal for as long as the time-out.
- *suspect*: a rank that never reported stands still for the time-out; or one that works visibly is beyond
  such a deadline. Told, with stacks; killed only if the person asked for it.
- nothing; also where a late rank may just be waiting for another one in a section (`patience`). The monitor knows
  the sections of its own node. It says when it has to be told those of others, before it speaks.

A pause of the machine or of this agent raises no alarm: what counts is time in which the agent lived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvrx_async.hang.computed import learned, longest
from nvrx_async.hang.deadlines import Deadline, beats_aside, deadlines, stall
from nvrx_async.hang.outside import Sample, Standing, first, following, restarted_at
from nvrx_async.hang.patience import (
    Excuse,
    OpenSection,
    Waits,
    excused,
    excused_until_s,
    is_excusable,
    open_section,
)
from nvrx_async.hang.policy import Action, HangPolicy
from nvrx_async.ranklink.page import PageView

PAUSE_S = 5.0
"""A gap between two signs of this agent's own life beyond which the whole machine is taken to have paused.
To be at least twice the interval of its lease renewals, which are such signs."""

_LOOKS_PER_TIMEOUT = 4
_LEAST_LOOK_S = 1.0
"""Shorter limits of sections make no more looks than one in so many seconds."""
ASK_AHEAD_S = 1.0
"""So long before a deadline other nodes are asked for the first time, or a quarter of the time-out if that is less."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rank that does not get on. `hung`: it is to be killed by the policy; `sentence` has no subject.

    `late_s`: how long ago its deadline was. `subject`: what it is late with; a second stall has another one.
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
    told: set[tuple[str, bool]] = field(default_factory=set)
    excuses: dict[str, Excuse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look found, and when the next one is due (seconds of CLOCK_MONOTONIC).

    `waits`: who is late and excused. `ask`: the look is to be repeated with the sections of other nodes, before that
    it cannot say who is late.
    """

    findings: tuple[Finding, ...]
    next_s: float
    waits: tuple[Waits, ...] = ()
    ask: bool = False


@dataclass(slots=True)
class _Looking:
    """One look. `sections` are those of this node, and those of others where they are known already."""

    now_s: float
    limits: Mapping[str, float]
    sections: tuple[OpenSection, ...]
    complete: bool
    findings: list[Finding] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    waited_for: dict[OpenSection, set[int]] = field(default_factory=dict)
    patient: set[int] = field(default_factory=set)
    ask: bool = False


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
        ask_ahead_s: float = ASK_AHEAD_S,
        first_rank: int = 0,
        node: str = "",
    ) -> None:
        self._policy = policy
        self._first_rank = first_rank
        self._node = node
        self._ahead_s = min(ask_ahead_s, policy.timeout_s / _LOOKS_PER_TIMEOUT)
        self._pause_s = pause_s
        self._ranks = {local_rank: _Rank(now_s) for local_rank in ranks}
        self._known = dict(known)
        self._expected = expected or (policy.startup_given and policy.first_report_s is None)
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

    def look(
        self,
        now_s: float,
        due_s: float,
        seen: Mapping[int, Seen],
        elsewhere: Sequence[OpenSection] | None = (),
    ) -> Look:
        """Judge all ranks.

        Args:
            now_s: now.
            due_s: the moment this look was meant for; a late one was a pause, perhaps.
            seen: the ranks of this node, by local rank.
            elsewhere: open sections of ranks of other nodes; None if they were not asked.
        """
        if now_s - due_s > self._pause_s:
            self._alive_s = min(self._alive_s, due_s)
            self.alive(now_s)
        self._alive_s = max(self._alive_s, now_s)
        self.learn([one.page for one in seen.values()])
        pages = {one: seen[one].page for one in self._ranks if one in seen}
        sections = (*self.open_sections(pages), *(elsewhere or ()))
        limits = learned(self._known, self.seen)
        looking = _Looking(now_s, limits, sections, complete=elsewhere is not None)
        looking.wakes.append(now_s + self._look_s(pages.values()))
        for local_rank, page in pages.items():
            rank, sample = self._ranks[local_rank], seen[local_rank].sample
            rank.standing = following(rank.standing, sample) if rank.standing else first(sample)
            self._judge(local_rank, rank, page, looking)
        waits = tuple(
            Waits(section, tuple(sorted((late | looking.patient) - {section.rank - self._first_rank})))
            for section, late in looking.waited_for.items()
        )
        return Look(tuple(looking.findings), max(min(looking.wakes), now_s), waits, looking.ask)

    def _look_s(self, pages: Iterable[PageView]) -> float:
        """Seconds between two looks: what begins right after one must not be late before the next."""
        told = [one.limit_s for page in pages for one in page.names]
        limits = [*self._policy.section_limits_s.values(), *told]
        shortest_s = min((one for one in limits if one is not None), default=math.inf)
        return min(self._policy.timeout_s / _LOOKS_PER_TIMEOUT, max(shortest_s, _LEAST_LOOK_S))

    def open_sections(self, pages: Mapping[int, PageView]) -> tuple[OpenSection, ...]:
        """The sections of this node's ranks in which they may be waited for."""
        limits = learned(self._known, self.seen)
        found = (
            open_section(
                page,
                self._first_rank + one,
                self._node,
                self._deadlines(self._ranks[one], page, limits),
                self._policy,
            )
            for one, page in pages.items()
            if one in self._ranks
        )
        return tuple(one for one in found if one is not None)

    def pending(self, pages: Mapping[int, PageView]) -> dict[int, Deadline]:
        """The deadline that comes first for each rank which has one, by local rank; for people who ask."""
        limits = learned(self._known, self.seen)
        found: dict[int, Deadline] = {}
        for one, page in pages.items():
            rank = self._ranks.get(one)
            due = self._deadlines(rank, page, limits) if rank is not None else ()
            if rank is not None and due:
                late = min(due, key=lambda deadline: deadline.at_s)
                found[one] = replace(late, at_s=excused_until_s(late, rank.excuses.get(late.subject)))
        return found

    def learn(self, pages: Sequence[PageView]) -> None:
        """Take the maxima that these ranks have seen."""
        for key, value in longest(pages).items():
            self.seen[key] = max(self.seen.get(key, 0.0), value)
        self._expected = self._expected or any(page.principal or page.sections for page in pages)

    def _deadlines(self, rank: _Rank, page: PageView, limits: Mapping[str, float]) -> tuple[Deadline, ...]:
        return deadlines(
            page,
            started_s=rank.started_s,
            expected=self._expected,
            limits=limits,
            policy=self._policy,
            not_before_s=self._not_before_s,
        )

    def _judge(self, local_rank: int, rank: _Rank, page: PageView, looking: _Looking) -> None:
        """Judge one rank: the first of its deadlines is told as hung if several have passed."""
        due = self._deadlines(rank, page, looking.limits)
        for deadline in sorted(due, key=lambda one: one.at_s):
            if not self._has_passed(local_rank, rank, deadline, looking):
                continue
            late = replace(deadline, at_s=excused_until_s(deadline, rank.excuses.get(deadline.subject)))
            hung_s = _hung_from_s(late, rank.standing)
            if hung_s <= looking.now_s:
                self._tell(local_rank, rank, replace(late, at_s=hung_s), looking, hung=True)
            else:
                works = replace(late, sentence=late.sentence + late.works)
                self._tell(local_rank, rank, works, looking, hung=False)
                looking.wakes.append(looking.now_s + self._policy.floor_s if late.learned else hung_s)
        self._from_outside(local_rank, rank, looking, spoken=bool(due) and not beats_aside(page))

    def _has_passed(self, local_rank: int, rank: _Rank, deadline: Deadline, looking: _Looking) -> bool:
        """Whether the rank is late by this deadline and nothing excuses it; else when to look again.

        What excuses it counts from shortly before the deadline on: who has just been waited for may not be back yet.
        """
        now_s, may_wait = looking.now_s, is_excusable(deadline)
        if may_wait and now_s >= deadline.at_s - deadline.limit_s / 2:
            looking.patient.add(local_rank)
        if may_wait and now_s >= deadline.at_s - self._ahead_s:
            section = self._excuse(local_rank, rank, deadline, looking)
            if section is None and not looking.complete:
                looking.ask = True
                if now_s >= deadline.at_s:
                    return False
            elif section is not None and now_s >= deadline.at_s:
                looking.waited_for.setdefault(section, set()).add(local_rank)
                looking.wakes.append(section.until_s)
        at_s = excused_until_s(deadline, rank.excuses.get(deadline.subject))
        if at_s <= now_s:
            return True
        moments = [at_s, deadline.at_s]
        if deadline.learned:
            moments.append(at_s - self._policy.probe_s)
        if may_wait:
            moments += [deadline.at_s - self._ahead_s, at_s - self._ahead_s]
        looking.wakes += [one for one in moments if one > now_s]
        return False

    def _excuse(
        self, local_rank: int, rank: _Rank, deadline: Deadline, looking: _Looking
    ) -> OpenSection | None:
        """The section that this rank may be waiting for."""
        number, before = self._first_rank + local_rank, rank.excuses.get(deadline.subject)
        found = excused(deadline, before, number, looking.now_s, looking.sections)
        if found is None:
            return None
        section, rank.excuses[deadline.subject] = found
        return section

    def _from_outside(self, local_rank: int, rank: _Rank, looking: _Looking, *, spoken: bool) -> None:
        """What can be said of a rank without its help."""
        standing, timeout_s = rank.standing, self._policy.timeout_s
        if standing is None:
            return
        if standing.stopped_since_s is not None:
            at_s = standing.stopped_since_s + timeout_s
            since_s, what, hung = standing.stopped_since_s, "is stopped by a signal (state T)", True
        elif not spoken:
            at_s = standing.still_since_s + timeout_s
            since_s, hung = standing.still_since_s, False
            what = "stands still: no CPU time, no output, no thread that changed its state"
        else:
            return
        late = Deadline(at_s, since_s, timeout_s, stall("outside", since_s), what)
        if standing.stopped_since_s is None and not self._has_passed(local_rank, rank, late, looking):
            return
        if at_s > looking.now_s:
            looking.wakes.append(at_s)
            return
        self._tell(local_rank, rank, late, looking, hung=hung)

    def _tell(self, local_rank: int, rank: _Rank, late: Deadline, looking: _Looking, *, hung: bool) -> None:
        """A finding, told once for each stall."""
        hung = (
            hung or self._policy.action is Action.KILL_SUSPECTS
        ) and self._policy.action is not Action.REPORT
        key = (late.subject, hung)
        if key in rank.told:
            return
        rank.told.add(key)
        late_s = looking.now_s - late.at_s
        looking.findings.append(
            Finding(local_rank, hung, late.subject, late.since_s, late.limit_s, late.sentence, late_s)
        )


def _hung_from_s(late: Deadline, standing: Standing | None) -> float:
    """When a rank is hung by a deadline: by some only if it has stood still long enough as well.

    Of the end it is known when it began: a movement that is seen first after it was the last work before it.
    """
    if not late.still_s:
        return late.at_s
    if standing is None:
        return math.inf
    if late.learned:
        return max(late.at_s, standing.still_since_s + late.still_s)
    seen_s = standing.still_since_s + late.still_s / 2
    return max(late.at_s, seen_s, standing.still_from_s(late.since_s) + late.still_s)
