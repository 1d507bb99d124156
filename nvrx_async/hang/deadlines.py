"""When a rank is late, by what it reported itself. Pure; moments are seconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvrx_async.hang.computed import REPORTS, section_key
from nvrx_async.hang.policy import HangPolicy
from nvrx_async.ranklink.page import PageView, SectionView

STEP = "step"
"""Name of the sections that `Rank.steps` makes."""

_FRAME_A_STEP = 2
"""Two reports outside of sections frame a step; before the second, the first one is not over."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment at which a rank is late. `subject` names what for, `since_s` when that began.

    `learned`: by experience only, so a rank that visibly works is not hung by it.
    """

    at_s: float
    since_s: float
    limit_s: float
    subject: str
    sentence: str
    learned: bool = False


def section_subject(section: SectionView) -> str:
    """What a deadline of this section is about: another entry into the same section is another subject."""
    return f"{section_key(section.name)}@{section.start_s:.3f}"


def deadlines(
    page: PageView,
    *,
    started_s: float,
    expected: bool,
    limits: Mapping[str, float],
    policy: HangPolicy,
    not_before_s: float,
) -> tuple[Deadline, ...]:
    """All deadlines of a rank; none if it never reported and need not.

    Args:
        page: what it reported.
        started_s: when its process began.
        expected: it is known that ranks of this job report.
        limits: learned limits in seconds.
        policy: how patient we are.
        not_before_s: everything counts from this moment at the earliest (a pause of the whole machine).
    """
    found = tuple(_all(page, limits, policy, started_s=started_s, expected=expected))
    return tuple(one if one.since_s >= not_before_s else _from(one, not_before_s) for one in found)


def _from(one: Deadline, moment_s: float) -> Deadline:
    later_s = max(one.at_s, moment_s + one.limit_s)
    return Deadline(later_s, one.since_s, one.limit_s, one.subject, one.sentence, one.learned)


def _all(
    page: PageView, limits: Mapping[str, float], policy: HangPolicy, *, started_s: float, expected: bool
) -> Iterator[Deadline]:
    if page.done_s is not None:
        yield _hard(page.done_s, policy.startup_s, "end", "said that training is done and does not end")
        return
    closed = {one.name for one in page.names if one.seen}
    for section in page.sections:
        first = section.name not in closed
        yield from _of_section(section, page.at_s, limits, policy, first=first, started_s=started_s)
    spoken = page.principal
    if spoken is None:
        if expected and not page.sections:
            what = "said hello and reported nothing more" if page.is_ready else "has not said hello"
            yield _hard(started_s, policy.startup_s, "start", what)
        return
    if spoken.open_sections == 0:
        at = (
            f"its last report was at step {spoken.step}"
            if spoken.step is not None
            else "it did report before"
        )
        what = f"reported nothing more ({at})"
        first = spoken.reports < _FRAME_A_STEP
        limit_s = _patience_s(spoken.last_s, policy, first_step=first, started_s=started_s)
        yield _hard(spoken.last_s, limit_s, REPORTS, what)
        if not first:
            yield from _by_experience(spoken.last_s, REPORTS, what, limits, policy)


def _of_section(
    section: SectionView,
    now_s: float,
    limits: Mapping[str, float],
    policy: HangPolicy,
    *,
    first: bool,
    started_s: float,
) -> Iterator[Deadline]:
    """Deadlines of an open section. One that is interrupted by an inner one is late only if it was before.

    `first`: this process is in it for the first time, which experience says nothing of.
    """
    key, what = section_key(section.name), f"is still in section {section.name}"
    # As if all the time in it had been one piece that goes on until now.
    since_s = now_s - section.own_s
    subject = section_subject(section)
    limit_s = section.limit_s
    if limit_s is None:
        first_step = first and section.name == STEP
        limit_s = _patience_s(since_s, policy, first_step=first_step, started_s=started_s)
    if section.runs or section.own_s >= limit_s:
        yield _hard(since_s, limit_s, subject, what)
        if section.limit_s is None and not first:
            yield from _by_experience(since_s, key, what, limits, policy, subject=subject)


def _patience_s(since_s: float, policy: HangPolicy, *, first_step: bool, started_s: float) -> float:
    """The time-out; a first step has the whole start, where a person said how long that may take."""
    if not (first_step and policy.startup_given):
        return policy.timeout_s
    return max(policy.timeout_s, started_s + policy.startup_s - since_s)


def _hard(since_s: float, limit_s: float, subject: str, sentence: str) -> Deadline:
    return Deadline(since_s + limit_s, since_s, limit_s, subject, sentence)


def _by_experience(
    since_s: float,
    key: str,
    sentence: str,
    limits: Mapping[str, float],
    policy: HangPolicy,
    *,
    subject: str | None = None,
) -> Iterator[Deadline]:
    """The learned deadline, where it comes before the time-out."""
    known_s = limits.get(key)
    if known_s is not None and (limit_s := max(known_s, policy.floor_s)) < policy.timeout_s:
        yield Deadline(since_s + limit_s, since_s, limit_s, subject or key, sentence, learned=True)
