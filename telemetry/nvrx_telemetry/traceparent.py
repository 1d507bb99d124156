"""Trace and span ids, and their spelling in `traceparent` (W3C Trace Context, version 00). Pure.

Ids are derived, not drawn: whoever knows what a span is about knows its id, so agents can name spans of each other
without asking, and machines that must be repeatable can open a trace.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SPELLED = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1


class SpanName(NamedTuple):
    """Which span of which trace."""

    trace_id: int
    span_id: int


def derived_trace_id(*parts: object) -> int:
    """An id of 128 bits that these parts determine."""
    return _derived(16, parts)


def derived_span_id(*parts: object) -> int:
    """An id of 64 bits that these parts determine."""
    return _derived(8, parts)


def spelled(name: SpanName, *, sampled: bool = True) -> str:
    """The value of a `traceparent` that names this span as parent."""
    return f"00-{name.trace_id:032x}-{name.span_id:016x}-{'01' if sampled else '00'}"


def parsed(text: object) -> SpanName | None:
    """The span that a `traceparent` names, None if it names none."""
    found = _SPELLED.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] == "ff":
        return None
    name = SpanName(int(found[2], 16), int(found[3], 16))
    return name if name.trace_id and name.span_id else None


def is_sampled(text: str) -> bool:
    """Whether a `traceparent` says that its trace is recorded."""
    found = _SPELLED.fullmatch(text)
    return found is not None and bool(int(found[4], 16) & _SAMPLED)


def _derived(size: int, parts: tuple[object, ...]) -> int:
    import hashlib  # noqa: PLC0415 - ranks load this module and derive nothing: 3 ms of their start

    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1  # 0 is no id
