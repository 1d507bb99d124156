"""`nvrx trace`: what it shows of records, and of a job that has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvrx_async.job.errors import NoSuchRoundError
from nvrx_async.job.records import FaultKind, Interrupt, Mark, Phase
from nvrx_async.job.round_record import NodeMarks, RoundRecord, RoundTimes
from nvrx_launcher.ctl.screen import screen_for
from nvrx_launcher.ctl.trace import lines, round_trace, show


def at(ms: int) -> str:
    return f"2026-01-31T10:00:{ms // 1000:02d}.{ms % 1000:03d}Z"


def rounds() -> list[RoundRecord]:
    interrupt = Interrupt("a", FaultKind.SIGNAL, "a", "rank 1 died", at(1000))
    ending = {Mark.FAULT: at(1000), Mark.TOLD: at(1001), Mark.STOPPING: at(1002), Mark.GONE: at(1050)}
    other = {Mark.TOLD: at(1011), Mark.STOPPING: at(1012), Mark.GONE: at(1090), Mark.REPORTED: at(1095)}
    first = RoundRecord(
        "job",
        0,
        0,
        Phase.ENDED,
        interrupt=interrupt,
        times=RoundTimes(
            opened_utc=at(0),
            fault_utc=at(1000),
            told_utc=at(1011),
            stopping_utc=at(1012),
            gone_utc=at(1090),
            reported_utc=at(1095),
            ended_utc=at(1100),
        ),
        nodes=(NodeMarks("a", "ha", ending), NodeMarks("b", "hb", other)),
    )
    second = RoundRecord(
        "job",
        0,
        1,
        Phase.RUNNING,
        why="rank 1 died",
        times=RoundTimes(running_utc=at(1110), released_utc=at(1112), started_utc=at(1130)),
        nodes=(
            NodeMarks("a", "ha", {Mark.STARTED: at(1120)}),
            NodeMarks("b", "hb", {Mark.STARTED: at(1130)}),
        ),
        trace_id="ab" * 16,
    )
    return [first, second]


def test_a_restart_is_drawn_over_all_nodes_and_for_each() -> None:
    text = lines(round_trace(*rounds()), screen_for("table"))
    assert text[0] == f"job job, attempt 0, round 1, trace {'ab' * 16}"
    assert "130 ms from the fault" in "\n".join(text)
    head, a, b = (line.split() for line in text[-3:])
    assert head == ["node", "fault", "told", "stopping", "gone", "reported", "started"]
    assert a == ["a", "+0", "ms", "+1", "ms", "+2", "ms", "+50", "ms", "-", "+120", "ms"]
    assert b == ["b", "-", "+11", "ms", "+12", "ms", "+90", "ms", "+95", "ms", "+130", "ms"]


def test_on_a_narrow_screen_it_is_said_shorter_and_in_two_tables() -> None:
    narrow = replace(screen_for("table"), width=50)
    text = lines(round_trace(*rounds()), narrow)
    assert max(map(len, text[4:])) <= 50
    heads = [line.split() for line in text if line.split()[:1] == ["node"]]
    assert heads == [["node", "fault", "told", "stopping", "gone", "reported"], ["node", "started"]]
    assert any(
        line.endswith("no rank lives (last: b)")
        for line in lines(round_trace(*rounds()), replace(narrow, width=60))
    )


def test_the_first_round_has_no_restart(capsys: pytest.CaptureFixture[str]) -> None:
    show("job", rounds(), screen_for("table"), 0)
    assert "no restart led here: the job begins" in capsys.readouterr().out


def test_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    show("job", rounds(), screen_for("json"), None)
    assert '"trace_id": "abab' in capsys.readouterr().out


def test_a_round_that_is_not_there_is_said() -> None:
    with pytest.raises(NoSuchRoundError):
        show("job", rounds(), screen_for("table"), 7)
