"""A finished span as plain data, as it travels from whoever saw it to whoever sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from nvrx_telemetry.traceparent import SpanName

Value: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Another span that this one has to do with."""

    to: SpanName
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FinishedSpan:
    """Moments are nanoseconds since 1970 (UTC).

    `parent_id` None: the root of its trace. `error`: what went wrong; such a span has status ERROR.
    `resource`: attributes of the process that it tells of, None for the process that sends it.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    links: tuple[SpanLink, ...] = ()
    error: str | None = None
    resource: Mapping[str, Value] | None = None
