"""A rank's side of its spool: where it is, how much it takes, and a span as a line. Loads next to nothing.

See `nvrx_telemetry.spool`. Ranks that tell of spans load this, in the middle of a restart.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvrx_telemetry.model import Value
    from nvrx_telemetry.traceparent import SpanName

VARIABLE = "NVRX_SPANS"
"""Where a rank appends its spans."""
CLOCK_VARIABLE = "NVRX_SPANS_EPOCH_NS"
"""Nanoseconds since 1970 at boot (CLOCK_BOOTTIME 0), as the agent has it: one clock for all spans of a node."""

LIMIT_BYTES = 4 << 20
"""A spool takes no more than this between two reads; what comes then is dropped."""


def line(
    name: str,
    me: SpanName,
    parent_id: int,
    times_ns: tuple[int, int],
    attributes: Mapping[str, Value],
    error: str | None,
    *,
    still_open: bool = False,
) -> bytes:
    """A span as a line. `parent_id` 0: none. `still_open`: it has not ended, and spans below it are told already."""
    data = {
        "name": name,
        "trace": f"{me.trace_id:032x}",
        "span": f"{me.span_id:016x}",
        "parent": f"{parent_id:016x}" if parent_id else "",
        "start_ns": times_ns[0],
        "end_ns": times_ns[1],
        "attributes": dict(attributes),
        "error": error,
    }
    if still_open:
        data["open"] = True
    return json.dumps(data, separators=(",", ":"), default=str).encode() + b"\n"


def lost(spans: int) -> bytes:
    """A line that says how many spans found no room before it."""
    return json.dumps({"lost": spans}).encode() + b"\n"
