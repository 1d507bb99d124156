"""The trace of a round: its parent stands in the round itself, so all nodes tell of it in one trace. Pure.

Nobody draws an id: it follows from what is opened by whom, when. A machine that is repeated opens the same trace,
and a transaction that was refused has opened none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvrx_async.job.records import Round
from nvrx_telemetry.traceparent import SpanName, derived_span_id, derived_trace_id, parsed, spelled

TRACEPARENT = "traceparent"
"""Key of a round's `extra`: the root of the round's trace (W3C Trace Context)."""

OPENED_BY = "opened_by"
"""Key of a round's `extra`: incarnation of the agent that opened it, which tells of the root."""


def opened(run_id: str, attempt: int, number: int, opened_utc: str, incarnation: str) -> dict[str, str]:
    """What a new round's `extra` says of its trace."""
    about = (run_id, attempt, number, opened_utc, incarnation)
    root = SpanName(derived_trace_id("trace", *about), derived_span_id("root", *about))
    return {TRACEPARENT: spelled(root), OPENED_BY: incarnation}


def root_of(now_round: Round) -> SpanName | None:
    """The root of a round's trace, None for a round that another version opened."""
    return parsed(now_round.extra.get(TRACEPARENT))


def opener_of(extra: Mapping[str, Any]) -> str:
    """Incarnation of the agent that opened the round, empty if nobody says."""
    opener = extra.get(OPENED_BY)
    return opener if isinstance(opener, str) else ""
