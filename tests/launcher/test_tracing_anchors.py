"""Anchors whose group is off go before the first span that is told of their trace, and only then."""

from __future__ import annotations

from nvrx_launcher.tracing_anchors import Anchors
from nvrx_telemetry.model import FinishedSpan


def anchor(trace_id: int, name: str) -> FinishedSpan:
    return FinishedSpan(name, trace_id, 1, None, 1, 1)


def test_a_trace_of_which_nothing_is_told_has_none() -> None:
    anchors = Anchors()
    assert anchors.held(anchor(1, "root")) == []
    assert anchors.before(2) == []


def test_they_go_once_and_later_ones_at_once() -> None:
    anchors, root, run, late = Anchors(), anchor(1, "root"), anchor(1, "run"), anchor(1, "late")
    assert anchors.held(root) == anchors.held(run) == []
    assert anchors.before(1) == [root, run]
    assert anchors.before(1) == []
    assert anchors.held(late) == [late]


def test_a_job_of_many_rounds_keeps_few() -> None:
    anchors = Anchors()
    for trace_id in range(1000):
        anchors.held(anchor(trace_id, "root"))
        anchors.before(trace_id + 5000)
    assert len(anchors._held) == len(anchors._told) == 16
    assert anchors.before(999) == [anchor(999, "root")]
