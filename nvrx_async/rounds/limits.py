"""What a round taught its agents, agreed for the next one without any rank taking part: limits, and imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nvrx_async.job.records import IMPORTS, LIMITS, STOP, Fault


def with_agreed_limits(extra: Mapping[str, Any], faults: Iterable[Fault]) -> dict[str, Any]:
    """A round's `extra` with the largest limit that any agent reports of each kind; others stay as they are.

    What ranks were seen to import is the same for all; of two agents that differ the later one is believed.
    """
    agreed = limits_in(extra)
    taught: dict[str, float] = {}
    imports = dict(_imports_in(extra))
    for fault in faults:
        imports |= _imports_in(fault.extra)
        for key, limit_s in limits_in(fault.extra).items():
            taught[key] = max(limit_s, taught.get(key, 0.0))
    agreed |= taught
    kept = {key: value for key, value in extra.items() if key != STOP}  # a stop was that round's own
    learned: dict[str, Any] = {LIMITS: agreed, IMPORTS: imports}
    return {**kept, **{key: value for key, value in learned.items() if value}}


def handed_on(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What an assignment has of its round's `extra`: limits and imports, where there are any."""
    learned: dict[str, Any] = {LIMITS: limits_in(extra), IMPORTS: _imports_in(extra)}
    return {key: value for key, value in learned.items() if value}


def _imports_in(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    raw = extra.get(IMPORTS)
    return raw if isinstance(raw, Mapping) else {}


def limits_in(extra: Mapping[str, Any]) -> dict[str, float]:
    """Limits in seconds that a record carries; what is no limit is left out."""
    raw = extra.get(LIMITS)
    if not isinstance(raw, Mapping):
        return {}
    return {str(key): float(value) for key, value in raw.items() if isinstance(value, int | float)}
