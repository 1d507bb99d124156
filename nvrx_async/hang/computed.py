"""Limits learned from what was seen: safety factor x maximum, as NVIDIA's `TimeoutsCalc` computes them.

The ranks keep their maxima on their pages, so no collective is needed: an agent takes the maximum over its
ranks, reports it with the round's end, and the coordinator merges the reports of all agents for the next round.
A limit that was itself learned is merged with the new one half and half.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvrx_async.hang.policy import SAFETY_FACTOR
from nvrx_async.ranklink.page import PageView

REPORTS = "reports"
"""Key of the limit between two reports outside of sections; sections have "section:" before their names."""

FEWEST = 5
"""Occurrences, the first one not counted, before a limit is learned."""

_WEIGHT = 0.5


def section_key(name: str) -> str:
    """Key of a section's limit."""
    return f"section:{name}"


def longest(pages: Iterable[PageView]) -> dict[str, float]:
    """The longest time of each kind that any of the ranks has seen often enough."""
    found: dict[str, float] = {}
    for page in pages:
        spoken = page.principal
        if spoken is not None and spoken.reports > FEWEST and spoken.gap_s > 0:
            found[REPORTS] = max(found.get(REPORTS, 0.0), spoken.gap_s)
        for name in page.names:
            if name.seen > FEWEST and name.longest_s > 0:
                key = section_key(name.name)
                found[key] = max(found.get(key, 0.0), name.longest_s)
    return found


def learned(known: Mapping[str, float], seen: Mapping[str, float]) -> dict[str, float]:
    """Limits that hold now: what earlier rounds taught, raised at once by anything longer."""
    return {key: max(known.get(key, 0.0), SAFETY_FACTOR * seen.get(key, 0.0)) for key in {*known, *seen}}


def merged(known: Mapping[str, float], seen: Mapping[str, float]) -> dict[str, float]:
    """Limits for the next round: half what was known, half what this round taught."""
    taught = {key: SAFETY_FACTOR * longest_s for key, longest_s in seen.items()}
    both = {
        key: round(_WEIGHT * limit_s + (1 - _WEIGHT) * known.get(key, limit_s), 3)
        for key, limit_s in taught.items()
    }
    return {**known, **both}
