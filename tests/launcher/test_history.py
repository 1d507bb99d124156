"""A job's history, and what was decided, on this node's disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvrx_async.job.codec import encode
from nvrx_async.job.history import past
from nvrx_async.job.job_events import EventKind
from nvrx_async.job.keys import Told
from nvrx_async.job.records import (
    Assignment,
    End,
    EndedBy,
    Fault,
    FaultKind,
    JobSpec,
    Level,
    Node,
    Outcome,
    Phase,
    Process,
    RankEnd,
    Root,
    Round,
    Seat,
)
from nvrx_async.job.unfinished import last_attempt
from nvrx_async.rounds.effects import Finished, Interrupted, Judged, Registered, RoundRunning, Waiting
from nvrx_launcher.history import DecisionLog, History, HistoryThread
from nvrx_launcher.recorded_store import ToldRecord

ASSIGNMENT = Assignment(0, Seat("a", "a-1", "h", 0, 0, 2), 2, 1, "addr", 1)
END = End(0, Root(FaultKind.SIGNAL, "rank 0 died"), Level.IN_JOB, "restart 1 of 3", "t")
SPEC = JobSpec(("train.py",), 1, 1, 0, 6, 1.0, 120.0, 600.0, 30.0)
NODE = Node("a", "a-1", "h", "addr", 2, Process("boot", "pid:[1]", 7, 8, "job/00"), "t")
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


def kept(path: Path, *told: ToldRecord) -> list[dict]:
    history = History(path / "h")
    for one in told:
        history.add_told(one)
    return [json.loads(line) for line in (path / "h").read_text().splitlines()]


def test_of_a_round_that_runs_its_moments_are_kept(tmp_path):
    running = Round(1, Phase.RUNNING, "t0", "t1", "token", verdict=END)
    forming = Round(2, Phase.FORMING, "t2")
    told = [ToldRecord(Told.ROUND, 4, None, encode(one), own=True) for one in (running, forming)]
    (line,) = kept(tmp_path, *told)
    assert (line["record"], line["attempt"], line["number"]) == ("round", 4, 1)
    assert "verdict" not in line, "it stands there as an end"


def test_a_report_is_kept_without_what_stands_there_already(tmp_path):
    ends = (
        RankEnd(0, 0, 7, FaultKind.STOPPED_BY_US, EndedBy.US, signal=15, last_lines=("bye",)),
        RankEnd(1, 1, 8, FaultKind.SIGNAL, EndedBy.ITSELF, signal=11, last_lines=("oh",)),
    )
    report = encode(Fault("b", "b-1", "host-b", ends, extra={"marks": {"gone_utc": "t"}}))
    told = [ToldRecord(Told.REPORT, 0, 2, report, own=own) for own in (True, False)]
    own, other = kept(tmp_path, *told)
    assert (own["record"], own["round"], own["marks"], own["ends"]) == ("report", 2, {"gone_utc": "t"}, [])
    assert [end["last_lines"] for end in other["ends"]] == [[], ["oh"]]


def test_what_no_agent_wrote_is_passed_over(tmp_path):
    history = History(tmp_path / "h")
    for value in (b"", b"not json", b"[]", b"3"):
        history.add_told(ToldRecord(Told.DONE, 0, 1, value, own=False))
    assert not (tmp_path / "h").exists()
    for ends in ("null", "3", '[3, null, "x"]'):
        history.add_told(ToldRecord(Told.REPORT, 0, 1, b'{"ends":%s}' % ends.encode(), own=False))
    assert [json.loads(line)["ends"] for line in (tmp_path / "h").read_text().splitlines()] == [[], [], []]


def test_a_thread_writes_in_order(tmp_path):
    jobs = []
    history = HistoryThread(History(tmp_path / "h"), jobs.append)
    history.add(Judged(END))
    history.add_end(0, RankEnd(0, 0, 7, None, EndedBy.ITSELF, exit_code=0))
    history.add_told(ToldRecord(Told.INTERRUPT, 0, 1, b'{"schema":1}', own=True))
    assert not (tmp_path / "h").exists()
    for job in jobs:
        job()
    kinds = [json.loads(line)["record"] for line in (tmp_path / "h").read_text().splitlines()]
    assert kinds == ["end", "rank_end", "interrupt"]


def test_an_outage_of_etcd_stands_in_the_history_and_is_told_as_an_event(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.add(RoundRunning(0, 1, 2, ASSIGNMENT, ""))
    history.add(Waiting("1 of 2 nodes joined"))
    history.add(Waiting("etcd does not answer; ranks run on", outage=True))
    found = past("llama", path.read_bytes().splitlines())
    assert found.outage == "etcd does not answer; ranks run on"
    assert [(one.kind, one.bad, one.sentence) for one in found.events] == [
        (EventKind.ETCD, True, found.outage)
    ]
    history.add(Waiting("etcd answers again", outage=False))
    found = past("llama", path.read_bytes().splitlines())
    assert (found.outage, found.unread) == ("", 0)
    assert [one.sentence for one in found.events] == [
        "etcd does not answer; ranks run on",
        "etcd answers again",
    ]


def test_an_outcome_tells_of_which_attempt_it_is(tmp_path):
    """Another agent of the folder may have begun the next one: its end is not this one's."""
    path = tmp_path / "history.jsonl"
    first, second = History(path, SPEC), History(path, SPEC)
    first.add(Registered(NODE, 0))
    second.add(Registered(NODE, 1))
    first.add(Finished(OUTCOME))
    found = past("job", path.read_bytes().splitlines())
    assert (found.attempt, found.outcome) == (1, None)
    told = last_attempt(path.read_bytes().splitlines())
    assert (told.attempt, told.over) == (1, False)
    second.add(Finished(OUTCOME))
    assert past("job", path.read_bytes().splitlines()).outcome is not None
    assert last_attempt(path.read_bytes().splitlines()).over
