"""Trace and span ids, and their spelling in `traceparent` (W3C Trace Context, version 00). Pure.

Ids are derived, not drawn: whoever knows what a span is about knows its id, so agents can name spans of each other
without asking, and machines that must be repeatable can open a trace.
"""

from __future__ import annotations

_DIGITS = frozenset("0123456789abcdef")
_LENGTHS = [2, 32, 16, 2]
_SAMPLED = 1


class SpanName(tuple[int, int]):
    """Which span of which trace. By hand: making a NamedTuple costs each rank that starts 0.3 ms."""

    __slots__ = ()

    def __new__(cls, trace_id: int, span_id: int) -> SpanName:  # noqa: PYI034 - Self would cost a rank an import of typing
        """Name a span."""
        return tuple.__new__(cls, (trace_id, span_id))

    @property
    def trace_id(self) -> int:
        """128 bits."""
        return self[0]

    @property
    def span_id(self) -> int:
        """64 bits."""
        return self[1]


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
    found = _fields(text) if isinstance(text, str) else None
    if found is None or found[0] == "ff":
        return None
    name = SpanName(int(found[1], 16), int(found[2], 16))
    return name if name.trace_id and name.span_id else None


def is_sampled(text: str) -> bool:
    """Whether a `traceparent` says that its trace is recorded."""
    found = _fields(text)
    return found is not None and bool(int(found[3], 16) & _SAMPLED)


def _fields(text: str) -> list[str] | None:
    """Version, trace, span and flags; later versions may have more. No regular expression: it costs a rank 1 ms."""
    found = text.split("-", 4)
    fields = found[:4]
    if [len(one) for one in fields] != _LENGTHS or not _DIGITS.issuperset("".join(fields)):
        return None
    return fields


def _derived(size: int, parts: tuple[object, ...]) -> int:
    import hashlib  # noqa: PLC0415 - ranks load this module and derive nothing: 3 ms of their start

    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1  # 0 is no id
