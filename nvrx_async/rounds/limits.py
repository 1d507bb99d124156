"""Time limits that a round taught its agents, agreed for the next one without any rank taking part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nvrx_async.job.records import LIMITS, STOP, Fault


def with_agreed_limits(extra: Mapping[str, Any], faults: Iterable[Fault]) -> dict[str, Any]:
    """A round's `extra` with the largest limit that any agent reports of each kind; others stay as they are."""
    agreed = limits_in(extra)
    taught: dict[str, float] = {}
    for fault in faults:
        for key, limit_s in limits_in(fault.extra).items():
            taught[key] = max(limit_s, taught.get(key, 0.0))
    agreed |= taught
    kept = {key: value for key, value in extra.items() if key != STOP}  # a stop was that round's own
    return {**kept, LIMITS: agreed} if agreed else kept


def limits_in(extra: Mapping[str, Any]) -> dict[str, float]:
    """Limits in seconds that a record carries; what is no limit is left out."""
    raw = extra.get(LIMITS)
    if not isinstance(raw, Mapping):
        return {}
    return {str(key): float(value) for key, value in raw.items() if isinstance(value, int | float)}
