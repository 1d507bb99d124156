"""Spans on their way from a rank to its agent: lines of JSON in memory that the agent made.

The rank appends a line with one `write`, which cannot wait for a collector, needs no thread and no OpenTelemetry,
is whole in the presence of forks (the kernel appends under a lock), and outlives a rank that is killed in the next
instant. The agent reads what is new when it sends spans anyway, and once more when the rank has ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace

from nvrx_telemetry.model import FinishedSpan, Value
from nvrx_telemetry.spool_line import LIMIT_BYTES
from nvrx_telemetry.traceparent import parsed

_MOST = (1 << 63) - 1

_ENDED_KNOWN = 4096
"""So many ended spans are remembered, in case a forked child still tells of one as open."""


def make(name: str) -> int:
    """Memory for the spans of one rank; returns its descriptor.

    Raises:
        OSError: no memory, or no descriptor, is left.
    """
    return os.memfd_create(f"nvrx-spans-{name}", os.MFD_CLOEXEC)


def read(text: bytes, resource: Mapping[str, Value]) -> tuple[list[tuple[FinishedSpan, bool]], int]:
    """The spans of whole lines, and whether each is still open; and how many found no room, by what is said of them.

    A line that is none is passed over, since a rank may write what it likes.
    """
    found, lost = [], 0
    for raw in text.splitlines():
        try:
            data = json.loads(raw)
            if isinstance(count := data.get("lost"), int):
                lost += min(max(count, 0), _MOST)
            else:
                found.append((_span(data, resource), bool(data.get("open"))))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return found, lost


class SpoolReader:
    """The agent's side of one spool. `lost`: how many spans found no room, as far as the rank could say."""

    def __init__(self, descriptor: int, resource: Mapping[str, Value]) -> None:
        self.lost = 0
        self._descriptor = descriptor
        self._resource = resource
        self._read_to = 0
        self._open: dict[int, FinishedSpan] = {}
        self._ended: dict[int, None] = {}

    @property
    def path(self) -> str:
        """Where the rank opens it, while the agent has it open (proc_pid_fd(5))."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def drain(self) -> list[FinishedSpan]:
        """Spans that came since the last time. Gives the memory of what was read back."""
        new = os.pread(self._descriptor, LIMIT_BYTES, self._read_to)
        whole = new[: new.rfind(b"\n") + 1]
        self._read_to += len(whole)
        if len(whole) > 1 << 16:
            _punch(self._descriptor, self._read_to)
        ended = []
        found, lost = read(whole, self._resource)
        self.lost += lost
        for span, still_open in found:
            if not still_open:
                self._open.pop(span.span_id, None)
                self._ended[span.span_id] = None
                if len(self._ended) > _ENDED_KNOWN:
                    del self._ended[next(iter(self._ended))]
                ended.append(span)
            elif span.span_id not in self._ended:
                self._open[span.span_id] = span
        return ended

    def abandoned(self, now_ns: int) -> list[FinishedSpan]:
        """Spans above others that never ended, once no process can end them: without them these were orphans."""
        left, self._open = self._open, {}
        return [
            replace(span, end_ns=max(span.start_ns, now_ns), error="never ended: its process is gone")
            for span in left.values()
        ]

    def close(self) -> None:
        """Give the memory back."""
        os.close(self._descriptor)


def _span(data: dict[str, object], resource: Mapping[str, Value]) -> FinishedSpan:
    attributes = data["attributes"]
    start_ns, end_ns = data["start_ns"], data["end_ns"]
    error, parent = data["error"], str(data["parent"])
    named = parsed(f"00-{data['trace']}-{data['span']}-01")
    if named is None or not isinstance(attributes, dict):
        raise ValueError(data)
    if not isinstance(start_ns, int) or not isinstance(end_ns, int) or not 0 < start_ns < _MOST:
        raise ValueError(data)
    return FinishedSpan(
        _text(data["name"]),
        named.trace_id,
        named.span_id,
        int(parent, 16) % (1 << 64) if parent else None,
        start_ns,
        min(max(start_ns, end_ns), _MOST),
        attributes={_text(key): _value(value) for key, value in attributes.items()},
        error=None if error is None else _text(error),
        resource=resource,
    )


def _value(value: object) -> Value:
    """What OTLP can carry: numbers of 64 bits, text that is UTF-8."""
    if isinstance(value, bool | float) or (isinstance(value, int) and -_MOST <= value <= _MOST):
        return value
    return _text(value)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _punch(descriptor: int, length: int) -> None:
    """Forget the first bytes of a file in memory (fallocate(2) with PUNCH_HOLE and KEEP_SIZE)."""
    import ctypes  # noqa: PLC0415 - only for spools that grew large

    punch_hole_keep_size = 3
    ctypes.CDLL(None).fallocate(descriptor, punch_hole_keep_size, ctypes.c_long(0), ctypes.c_long(length))
