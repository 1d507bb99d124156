"""When a rank is late, by what it reported itself. Pure; moments are seconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nvrx_async.hang.computed import REPORTS, section_key
from nvrx_async.hang.policy import HangPolicy
from nvrx_async.ranklink.page import PageView, SectionView

STEP = "step"
"""Name of the sections that `Rank.steps` makes."""

_SAMPLED = 0.9
"""Part of the time between two samples that is sure to lie between them."""
_FRAME_A_STEP = 2
"""Two reports outside of sections frame a step; before the second, the first one is not over."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment at which a rank is late. `subject` names what for, `since_s` when that began.

    The subject is the same at every look while the rank does not get on; the next stall has another one.
    `learned`: by experience only. `still_s`: how long the rank must have stood still besides, or it is suspect and not
    hung; `works`: what the sentence says more of such a rank.
    """

    at_s: float
    since_s: float
    limit_s: float
    subject: str
    sentence: str
    learned: bool = False
    still_s: float = 0.0
    works: str = ""


def stall(key: str, began_s: float) -> str:
    """Subject of a deadline of this kind."""
    return f"{key}@{began_s:.3f}"


def section_subject(section: SectionView) -> str:
    """What a deadline of this section is about: another entry into the same section is another subject."""
    return stall(section_key(section.name), section.start_s)


def beats_aside(page: PageView) -> bool:
    """Whether all that this rank tells are heartbeats of a thread that may not be the one which trains."""
    spoken = page.principal
    return (
        spoken is not None
        and spoken.ident != page.main_ident
        and spoken.step is None
        and not page.sections
        and not _has_steps(page)
        and page.done_s is None
    )


def _has_steps(page: PageView) -> bool:
    """Whether a step was begun as a section, be it open or over."""
    return any(one.name == STEP for one in page.sections) or any(one.name == STEP for one in page.names)


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
    return replace(one, at_s=max(one.at_s, moment_s + one.limit_s))


def _all(
    page: PageView, limits: Mapping[str, float], policy: HangPolicy, *, started_s: float, expected: bool
) -> Iterator[Deadline]:
    done_s = page.done_s
    sections = [one for one in page.sections if done_s is None or one.start_s >= done_s]
    closed = {one.name for one in page.names if one.seen}
    starts = _starts(page, policy)
    for section in sections:
        first = section.name not in closed
        first_step = (starts and section.name not in policy.section_limits_s) or (
            first and section.name == STEP
        )
        yield from _of_section(
            section, page.at_s, limits, policy, first=first, first_step=first_step, started_s=started_s
        )
    if done_s is not None:
        if not sections:
            yield _end(page, done_s, policy)
        return
    spoken = page.principal
    if spoken is None:
        if expected and not sections:
            yield _start(page, policy, started_s)
        return
    if spoken.open_sections == 0:
        at = (
            f"its last report was at step {spoken.step}"
            if spoken.step is not None
            else "it did report before"
        )
        what = f"reported nothing more ({at})"
        first = (starts and bool(closed)) or spoken.reports < _FRAME_A_STEP
        limit_s = _patience_s(spoken.last_s, policy, first_step=first, started_s=started_s)
        subject = stall(REPORTS, spoken.last_s)
        yield _hard(spoken.last_s, limit_s, subject, what)
        if not first:
            yield from _by_experience(spoken.last_s, REPORTS, what, limits, policy, subject)


def _end(page: PageView, done_s: float, policy: HangPolicy) -> Deadline:
    """Nothing is reported any more, so it is judged from outside: what works may be a last evaluation.

    Who reports on all the same is not at its end before the last of these reports.
    """
    spoken = page.principal
    since_s = max(done_s, spoken.last_s) if spoken is not None else done_s
    return Deadline(
        since_s + policy.startup_s,
        since_s,
        policy.startup_s,
        stall("end", since_s),
        "said that training is done and does not end",
        still_s=policy.timeout_s,
        works=" but works on",
    )


def _starts(page: PageView, policy: HangPolicy) -> bool:
    """Whether sections are known by name, and no step has begun: what lies between them is still the start."""
    spoken = page.principal
    return bool(policy.section_limits_s) and not _has_steps(page) and (spoken is None or spoken.step is None)


def _start(page: PageView, policy: HangPolicy, started_s: float) -> Deadline:
    """Of a rank that has not reported."""
    since_s, limit_s = started_s, policy.startup_s
    if policy.first_report_s is not None and page.hello_s is not None:
        since_s, limit_s = page.hello_s, policy.first_report_s
    return _hard(since_s, limit_s, stall("start", since_s), _of_start(page))


def _of_start(page: PageView) -> str:
    """How far a rank has come that has not begun to train."""
    if any(one.reports for one in page.threads):
        return "said hello, and only threads beside the one that connected have reported"
    return "said hello and reported nothing more" if page.is_ready else "has not said hello"


def _of_section(
    section: SectionView,
    now_s: float,
    limits: Mapping[str, float],
    policy: HangPolicy,
    *,
    first: bool,
    first_step: bool,
    started_s: float,
) -> Iterator[Deadline]:
    """Deadlines of an open section. One that is interrupted by an inner one is late only if it was before.

    `first`: this process is in it for the first time, which experience says nothing of. `first_step`: it is the first
    step, or something before it that no limit is known of.
    """
    key, what = section_key(section.name), f"is still in section {section.name}"
    # As if all the time in it had been one piece that goes on until now.
    since_s = now_s - section.own_s
    subject = section_subject(section)
    limit_s = policy.limit_of_section_s(section.name, section.limit_s)
    if math.isinf(limit_s):
        return
    if section.limit_s is None and first_step:
        limit_s = max(limit_s, _patience_s(since_s, policy, first_step=True, started_s=started_s))
    if section.runs or section.own_s >= limit_s:
        yield _hard(since_s, limit_s, subject, what)
        learns = section.limit_s is None and section.name not in policy.section_limits_s
        if learns and not first:
            yield from _by_experience(since_s, key, what, limits, policy, subject)


def _patience_s(since_s: float, policy: HangPolicy, *, first_step: bool, started_s: float) -> float:
    """The time-out; a first step has the whole start, where a person said how long that may take."""
    if not (first_step and policy.startup_given):
        return policy.timeout_s
    return max(policy.timeout_s, started_s + policy.first_step_s - since_s)


def _hard(since_s: float, limit_s: float, subject: str, sentence: str) -> Deadline:
    return Deadline(since_s + limit_s, since_s, limit_s, subject, sentence)


def _by_experience(
    since_s: float,
    key: str,
    sentence: str,
    limits: Mapping[str, float],
    policy: HangPolicy,
    subject: str,
) -> Iterator[Deadline]:
    """The learned deadline, where it comes before the time-out."""
    known_s = limits.get(key)
    if known_s is not None and (limit_s := max(known_s, policy.floor_s)) < policy.timeout_s:
        still_s = policy.probe_s * _SAMPLED
        yield Deadline(since_s + limit_s, since_s, limit_s, subject, sentence, learned=True, still_s=still_s)
