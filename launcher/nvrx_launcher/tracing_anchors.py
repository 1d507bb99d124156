"""Spans that others are below, where their group is off: without them a training's own spans had no root. Pure."""

from __future__ import annotations

from nvrx_telemetry import semconv
from nvrx_telemetry.model import FinishedSpan

NAMES = frozenset({semconv.ROUND_START, semconv.CYCLE_START, semconv.RUN_START})
_MOST_TRACES = 16


class Anchors:
    """Holds them back until something is told of their trace."""

    def __init__(self) -> None:
        self._held: dict[int, list[FinishedSpan]] = {}
        self._told: dict[int, None] = {}

    def held(self, span: FinishedSpan) -> list[FinishedSpan]:
        """An anchor; what of it is to be sent now."""
        if span.trace_id in self._told:
            return [span]
        self._held.setdefault(span.trace_id, []).append(span)
        _bound(self._held)
        return []

    def before(self, trace_id: int) -> list[FinishedSpan]:
        """Something is told of this trace; what has to go with it."""
        if trace_id not in self._told:
            self._told[trace_id] = None
            _bound(self._told)
        return self._held.pop(trace_id, [])


def _bound(traces: dict[int, list[FinishedSpan]] | dict[int, None]) -> None:
    if len(traces) > _MOST_TRACES:
        del traces[next(iter(traces))]
