"""What is found out about ranks: real processes, and a `py-spy` that behaves well or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from nvrx_async.hang import evidence
from nvrx_async.hang.evidence import Asked, gather
from nvrx_async.ranklink.messages import PAGE_VARIABLE, SOCKET_VARIABLE, STACKS_VARIABLE
from nvrx_async.ranklink.page import Page

WAITS = """Process {pid}: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    all_reduce ({at}torch/distributed/distributed_c10d.py:3252)
    wrapper ({at}torch/distributed/c10d_logger.py:83)
    <module> ({home}train.py:4)
Thread 99 (idle): "loader"
    wait ({at}threading.py:327)
"""
RUNS = ("R", "S", "D")
SITE, HOME = "/v/lib/python3.11/site-packages/", "/home/u/"


@contextmanager
def process(program: str = "import time; time.sleep(1000)") -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program]) as started:
        try:
            yield started.pid
        finally:
            started.kill()


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def py_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "bin" / "py-spy"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def asked(pid: int, folder: Path) -> Asked:
    return Asked(2, "h", pid, None, folder, hung=True, late_s=0.25)


async def look(pid: int, folder: Path):
    found = await gather([asked(pid, folder)], within_s=20)
    return found[2], orjson.loads((folder / "hang.json").read_bytes())


async def test_without_any_help_there_is_what_the_kernel_says(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence.shutil, "which", lambda _: None)
    with process() as pid:
        state, kept = await look(pid, tmp_path)
    assert state.state in RUNS
    assert (state.frames, state.hung, kept["late_s"]) == ((), True, 0.25)
    assert kept["threads"][0]["state"] in RUNS


TRAINS_ASIDE = """
import threading, nvrx_async
def train():
    with nvrx_async.connect() as rank:
        rank.progress(step=3)
        print("trains", flush=True)
        threading.Event().wait()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@pytest.fixture
def trains_aside(tmp_path: Path) -> Iterator[Asked]:
    """A rank whose main thread waits for the one that trains."""
    with closing(Page.create(0, 2)) as page:
        reports = {
            PAGE_VARIABLE: page.path,
            SOCKET_VARIABLE: str(tmp_path / "nobody.sock"),
            STACKS_VARIABLE: str(tmp_path / "stacks.txt"),
        }
        program, environment = [sys.executable, "-c", TRAINS_ASIDE], {**os.environ, **reports}
        with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE) as started:
            assert started.stdout is not None
            assert started.stdout.readline() == b"trains\n"
            yield replace(asked(started.pid, tmp_path), page=page.view(time.monotonic_ns()))
            started.kill()


async def test_the_thread_that_trains_is_shown_where_it_is_not_the_main_one(trains_aside, monkeypatch):
    monkeypatch.setattr(evidence.shutil, "which", lambda _: None)
    state = (await gather([trains_aside], within_s=20))[2]
    shown = [frame.function for frame in state.frames]
    assert "train" in shown
    assert "<module>" not in shown


@pytest.mark.parametrize("full", [True, False], ids=["current", "early version"])
async def test_py_spy_tells_who_waits(tmp_path, monkeypatch, full):
    """An early version refuses the option and has short names: torch is recognized in both."""
    with process() as pid:
        told = WAITS.format(pid=pid, at=SITE if full else "", home=HOME if full else "")
        refuses = "" if full else 'case "$*" in *--full*) exit 2;; esac\n'
        py_spy(tmp_path, monkeypatch, f"{refuses}cat <<'end'\n{told}end")
        state, _ = await look(pid, tmp_path)
    assert state.waits
    assert [one.line for one in state.frames] == [3252, 83, 4]
    assert state.place == "train.py:4 in <module>" or not full
    assert "loader" in (tmp_path / "stacks.txt").read_text()


async def test_a_py_spy_that_hangs_or_fails_costs_its_time_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "PY_SPY_WITHIN_S", 0.2)
    py_spy(tmp_path, monkeypatch, "exec sleep 1000")
    with process() as pid:
        state, _ = await look(pid, tmp_path)
    assert state.state in RUNS
    assert not state.frames


async def test_a_stopped_rank_and_one_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence.shutil, "which", lambda _: None)
    with process() as pid:
        stop(pid)
        state, _ = await look(pid, tmp_path)
        assert state.state == "T"
    state, _ = await look(pid, tmp_path)
    assert state.ended


async def test_evidence_of_many_ranks_keeps_to_the_limit(tmp_path, monkeypatch):
    py_spy(tmp_path, monkeypatch, "exec sleep 1000")
    with process() as pid:
        many = [Asked(rank, "h", pid, None, tmp_path, hung=True) for rank in range(16)]
        begun_s = time.monotonic()
        found = await gather(many, within_s=0.3)
        assert time.monotonic() - begun_s < 10
    assert found.keys() == set(range(16))
    assert all(one.state in RUNS for one in found.values())
