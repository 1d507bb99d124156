"""Who waits does not hang: open sections of some ranks excuse others that are late. Pure.

While one rank saves, the others stand in a barrier and are late by their own limits. The one that works has said
how long it may take: until then they wait, after that it is the one to blame. So that no hang is excused for
ever: only sections with names count (a step is what everybody is in), only those of ranks which are not late
themselves, and one stall is excused for no longer than the longest limit of a section that excused it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvrx_async.hang.computed import section_key
from nvrx_async.hang.deadlines import Deadline, section_subject
from nvrx_async.hang.policy import HangPolicy
from nvrx_async.ranklink.page import PageView

STEP = "step"
"""The section that `Rank.steps` opens around each step. Whoever waits for a peer does so in it, too."""


@dataclass(frozen=True, slots=True)
class OpenSection:
    """A named part of the work that a rank is in. Moments are seconds of CLOCK_MONOTONIC on this host.

    `node`: where the rank runs, as people know it. `mark`: tells this entry from another into the same section.
    `until_s`: its deadline. `limit_s`: the longest limit among the sections that the rank is in.
    """

    rank: int
    node: str
    name: str
    mark: str
    since_s: float
    until_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Waits:
    """Local ranks that are late, or soon will be, while a rank somewhere is in a section that may take longer."""

    section: OpenSection
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Excuse:
    """What is kept of a stall that was excused: when last, and the longest limit of what excused it."""

    last_s: float
    limit_s: float


def open_section(
    page: PageView, rank: int, node: str, due: Sequence[Deadline], policy: HangPolicy
) -> OpenSection | None:
    """The section in which this rank may be waited for, None if there is none or the rank is late itself.

    Args:
        page: what it reported.
        rank: its number in the world.
        node: where it runs.
        due: its own deadlines.
        policy: how long a section without a limit of its own may take.
    """
    if any(one.at_s <= page.at_s for one in due if not one.learned):
        return None
    trains = page.principal.ident if page.principal is not None else page.main_ident
    named = [one for one in page.sections if one.name != STEP and one.ident == trains]
    until_s = {one.subject: one.at_s for one in due if not one.learned}
    running = [(until_s[subject], one) for one in named if (subject := section_subject(one)) in until_s]
    if not running:
        return None
    last_s, inner = max(running, key=lambda one: one[0])
    limits = (policy.limit_of_section_s(one.name, one.limit_s) for one in named)
    limit_s = max(one for one in limits if math.isfinite(one))
    return OpenSection(rank, node, inner.name, section_subject(inner), inner.start_s, last_s, limit_s)


def is_excusable(late: Deadline) -> bool:
    """Whether who is late with this may just be waiting: not who is in a named section, which has its own limit."""
    step, others = section_key(STEP), section_key("")
    return not late.subject.startswith(others) or late.subject.startswith(f"{step}@")


def excused_until_s(late: Deadline, excuse: Excuse | None) -> float:
    """When a rank is late, after what excused it: its patience begins anew when it was last known to wait."""
    if excuse is None:
        return late.at_s
    return max(late.at_s, min(excuse.last_s + late.limit_s, late.at_s + excuse.limit_s))


def excused(
    late: Deadline, before: Excuse | None, rank: int, now_s: float, sections: Iterable[OpenSection]
) -> tuple[OpenSection, Excuse] | None:
    """The section that this rank may be waiting for, the one that may take longest; and what to keep of it."""
    longest_s = before.limit_s if before is not None else 0.0
    valid = [
        one
        for one in sections
        if one.rank != rank and now_s < min(one.until_s, late.at_s + max(longest_s, one.limit_s))
    ]
    if not valid:
        return None
    chosen = min(valid, key=lambda one: (-one.until_s, one.rank))
    return chosen, Excuse(now_s, max(longest_s, chosen.limit_s))


# Between agents: clocks of two hosts are not compared, only lengths of time travel ---------------------------


def to_wire(section: OpenSection, now_s: float) -> dict[str, Any]:
    """A section as it is told to the agent of another node."""
    return {
        "rank": section.rank,
        "node": section.node,
        "name": section.name,
        "mark": section.mark,
        "open_s": now_s - section.since_s,
        "left_s": section.until_s - now_s,
        "limit_s": section.limit_s,
    }


def from_wire(raw: object, asked_s: float) -> OpenSection:
    """A section as another agent told it, asked at `asked_s` of our clock: it may end earlier than it says, not later.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"no section: {raw!r}")  # noqa: TRY004 - the message is wrong, not our call
    open_s, left_s, limit_s = (_length(raw, name) for name in ("open_s", "left_s", "limit_s"))
    match raw:
        case {"rank": int(rank), "node": str(node), "name": str(name), "mark": str(mark)}:
            return OpenSection(rank, node, name, mark, asked_s - open_s, asked_s + left_s, limit_s)
        case _:
            raise ValueError(f"no section: {dict(raw)!r}")


def _length(raw: Mapping[str, Any], name: str) -> float:
    value = raw.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"no section: {name} is {value!r}")
    return float(value)
