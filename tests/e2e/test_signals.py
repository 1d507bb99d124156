"""Signals that are the ranks' own, signals that were ignored, and a stop that takes its time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.stage import Stage

LISTENS = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("handled by", os.environ["RANK"], flush=True))
print("ready", os.environ["RANK"], flush=True)
while True:
    signal.pause()
"""
CLINGS = """
import os, signal, sys
rank = os.environ["RANK"]
if rank == "0":
    signal.signal(signal.SIGTERM, lambda *_: print("not now", flush=True))
    print("ready", flush=True)
    while True:
        signal.pause()
sys.stdin = open(sys.argv[1])
sys.stdin.readline()
sys.exit(3)
"""


def script(on: Stage, text: str) -> str:
    path = on.folder / "train.py"
    path.write_text(text)
    return str(path)


@contextmanager
def ignoring(number: signal.Signals) -> Iterator[None]:
    """What is started meanwhile ignores the signal, as under `nohup`."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_sigusr1_is_for_the_ranks_that_handle_it_and_nobody_ends(job: Stage) -> None:
    agent = job.launch(script(job, LISTENS), options=("--nproc-per-node", "2"))
    for rank in range(2):
        agent.says(f"ready {rank}")
    agent.signal(signal.SIGUSR2)  # nobody handles it: it would be their end
    agent.says("SIGUSR2: passed on to the ranks that handle it")
    agent.signal(signal.SIGUSR1)
    for rank in range(2):
        agent.says(f"handled by {rank}")
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143, job.told()


def test_signals_that_the_person_names_are_passed_on_too(job: Stage) -> None:
    program = script(job, LISTENS.replace("SIGUSR1", "SIGCONT"))
    agent = job.launch(program, options=("--signals-to-handle", "SIGTERM,SIGCONT"))
    agent.says("ready 0")
    agent.signal(signal.SIGCONT)
    agent.says("handled by 0")
    agent.signal(signal.SIGINT)
    assert agent.ends() == 130, job.told()


def test_nohup_stays_nohup(job: Stage) -> None:
    with ignoring(signal.SIGHUP):
        agent = job.launch(options=("--nproc-per-node", "2"))
    ranks = job.up(0, 2)
    agent.signal(signal.SIGHUP)
    os.kill(ranks[0].pid, signal.SIGHUP)
    job.finish(ranks)
    assert agent.ends() == 0, job.told()
    assert "SIGHUP" not in agent.text


def test_a_terminal_that_goes_away_stops_the_job(job: Stage) -> None:
    agent = job.launch(*job.ranks("--saves"))
    job.up(0, 1)
    agent.signal(signal.SIGHUP)
    assert agent.ends() == 129, job.told()
    job.tell("saved", 0, 1)


@pytest.mark.parametrize("grace", ["1", "6"])
def test_a_rank_that_will_not_stop_has_the_grace_and_the_one_that_failed_is_named(
    job: Stage, grace: str
) -> None:
    """V12. The same grace as when the agent is signalled; who ended whom is on record."""
    go = job.folder / "go"
    os.mkfifo(go)
    options = ("--nproc-per-node", "2", "--workers-stop-timeout", grace)
    agent = job.launch(script(job, CLINGS), str(go), options=options)
    agent.says("ready")
    go.write_text("\n")
    agent.says("not now")
    assert agent.ends() == 1, job.told()
    if grace == "6":
        assert agent.said(r"rank 0 still runs after SIGTERM, SIGKILL in \d")
    assert agent.said(r"rank 0 still runs after SIGTERM, killed now"), job.told()
    _, _, summary = agent.text.rpartition(f"job {job.run_id} failed")
    assert "rank 1" in summary
    assert "exited with code 3" in summary
    kept = (job.folder / "logs" / job.run_id / "history.jsonl").read_text().splitlines()
    ends = [record for record in map(json.loads, kept) if record["record"] == "rank_end"]
    assert {(end["rank"], end["by"]) for end in ends} == {(0, "us"), (1, "itself")}
    report = (job.folder / "logs" / job.run_id / "summary.txt").read_text()
    assert "exited with code 3" in report


def test_the_grace_is_the_same_when_the_agent_is_signalled(job: Stage) -> None:
    agent = job.launch(script(job, CLINGS), "unused", options=("--workers-stop-timeout", "1"))
    agent.says("ready")
    agent.signal(signal.SIGTERM)
    agent.says("not now")
    assert agent.ends() == 143, job.told()
    assert agent.said(r"SIGTERM: stopping; ranks have 1 s"), job.told()
    assert agent.said(r"rank 0 still runs after SIGTERM, killed now"), job.told()


def test_a_rank_that_somebody_kills_is_recorded_so(job: Stage) -> None:
    agent = job.launch(options=("--nproc-per-node", "2"))
    os.kill(job.up(0, 2)[1].pid, signal.SIGKILL)
    assert agent.ends() == 1, job.told()
    assert agent.said(r"rank 1 on \S+ was killed by SIGKILL \(not sent by nvrx-launch\)")
    kept = (job.folder / "logs" / job.run_id / "history.jsonl").read_text().splitlines()
    ends = [record for record in map(json.loads, kept) if record["record"] == "rank_end"]
    assert {(end["rank"], end["by"]) for end in ends} == {(0, "us"), (1, "someone_else")}
