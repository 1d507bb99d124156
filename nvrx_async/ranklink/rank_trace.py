"""The start of a rank as spans: interpreter and imports, what comes before the first step, the first step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvrx_telemetry import semconv, spans
from nvrx_telemetry.spool_line import LAUNCHED_VARIABLE

if TYPE_CHECKING:
    from nvrx_async.ranklink.rank import Rank
    from nvrx_telemetry.model import Value


def tell_of_start(rank: Rank) -> None:
    """Tell of the start of this rank, which has just said hello. Nothing happens where the agent wants no spans."""
    recorder = spans.recorder()
    if recorder is not None:
        _Start(rank, recorder)


class _Start:
    """Hears of steps until two were begun.

    In a place that `Rank` has for it: a method put over another one would cost every beat to come 10 %, since CPython
    reads attributes of objects more slowly whose `__dict__` was touched.
    """

    def __init__(self, rank: Rank, recorder: spans.Recorder) -> None:
        self._rank, self._recorder = rank, recorder
        self._hello_ns, self._first_ns = recorder.now_ns(), 0
        local_rank = os.environ.get("LOCAL_RANK", "")
        self._attributes: dict[str, Value] = {semconv.RDZV_ROUND: rank.round}
        if local_rank.isdigit():
            self._attributes[semconv.LOCAL_RANK] = int(local_rank)
        launched = os.environ.get(LAUNCHED_VARIABLE, "")
        if launched.isdigit():
            spans.record(semconv.RANK_STARTUP, int(launched), self._hello_ns, self._attributes)
        rank.starting = self._step_begun

    def _step_begun(self) -> None:
        now_ns = self._recorder.now_ns()
        if not self._first_ns:
            self._first_ns = now_ns
            spans.record(semconv.RANK_SETUP, self._hello_ns, now_ns, self._attributes)
            return
        self._rank.starting = None
        spans.record(semconv.RANK_FIRST_STEP, self._first_ns, now_ns, self._attributes)
