"""A job's history, and what was decided, on this node's disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvrx_async.job.records import Assignment, End, FaultKind, Level, Outcome, Root, Seat
from nvrx_async.rounds.effects import Finished, Interrupted, Judged, RoundRunning, Waiting
from nvrx_launcher.history import DecisionLog, History

ASSIGNMENT = Assignment(0, Seat("a", "a-1", "h", 0, 0, 2), 2, 1, "addr", 1)
END = End(0, Root(FaultKind.SIGNAL, "rank 0 died"), Level.IN_JOB, "restart 1 of 3", "t")
OUTCOME = Outcome(True, 0, "all ranks finished", 1, "t")


def test_history_holds_what_ends_rounds_and_the_job_one_object_a_line(tmp_path):
    history = History(tmp_path / "deep" / "history.jsonl")
    for notice in (
        RoundRunning(0, 1, 2, ASSIGNMENT, ""),
        RoundRunning(0, 1, 2, None, ""),
        Interrupted(0, "why"),
        Waiting("for others"),
        Judged(END),
        Finished(OUTCOME),
    ):
        history.add(notice)
    lines = [json.loads(line) for line in (tmp_path / "deep" / "history.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines] == ["assignment", "end", "outcome"]
    assert lines[1]["root"]["sentence"] == "rank 0 died"
    assert lines[2]["success"] is True
    assert all(line["schema"] == 1 for line in lines)


def test_a_later_agent_goes_on_in_the_same_file(tmp_path):
    for _ in range(2):
        History(tmp_path / "h").add(Finished(OUTCOME))
    assert len((tmp_path / "h").read_text().splitlines()) == 2


def test_decisions_are_sentences_whatever_is_in_them(tmp_path):
    log = DecisionLog(tmp_path / "log")
    log.add("member: joins")
    log.add("argument \udcff of a script")
    assert (tmp_path / "log").read_text() == "member: joins\nargument \\udcff of a script\n"


@pytest.mark.parametrize("where", ["/dev/full", "/proc/nobody/writes/here"])
def test_a_disk_that_takes_nothing_costs_the_mirror_and_never_the_job(where):
    history, log = History(Path(where)), DecisionLog(Path(where))
    for _ in range(3):
        history.add(Finished(OUTCOME))
        log.add("line")
    assert history._file._broken
    assert log._file._broken
