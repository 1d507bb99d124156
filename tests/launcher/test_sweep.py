"""Proof of death, and sweeping by mark and kinship."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from keeper_kit import alive, bystander, marked, reap_orphans

from nvrx_async.job.records import Node, Process
from nvrx_launcher.keeper import processes
from nvrx_launcher.sweep import (
    KEEPER_MARK,
    MARK,
    Verdict,
    become_subreaper,
    prove_dead,
    sweep,
    sweep_orphans,
    this_process,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def child(code: str, tag: str | None = None, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that says "up" when it is where the test wants it."""
    environment = {"PATH": os.environ["PATH"], **({MARK: tag} if tag else {}), **env}
    words = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.kill()


SLEEPER = "print('up', flush=True); import signal; signal.pause()"
# Leaves an orphan in a session of its own, then sleeps.
SPLITTER = (
    "import os, signal\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print('up', flush=True); signal.pause()\n"
    "    os._exit(0)\n"
    "signal.pause()"
)


@pytest.fixture
def tag() -> str:
    return f"run/node/{uuid.uuid4().hex}"


def record_of(pid: int) -> Process:
    stat = processes.read_stat(pid)
    assert stat is not None
    return dataclasses.replace(this_process(""), pid=pid, start_ticks=stat.start_ticks)


def node(process: Process, tag: str) -> Node:
    marked_process = dataclasses.replace(process, tag=tag)
    return Node("node", "incarnation", "host", "host", 1, marked_process, "2026-01-01T00:00:00Z")


def test_this_process_lives() -> None:
    assert verdict(this_process("")) is Verdict.ALIVE


def test_a_process_is_dead_when_it_is_a_zombie_and_when_it_is_reaped() -> None:
    with child(SLEEPER) as process:
        record = record_of(process.pid)
        assert verdict(record) is Verdict.ALIVE
        process.send_signal(signal.SIGSTOP)
        assert verdict(record) is Verdict.ALIVE
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert verdict(record) is Verdict.DEAD
    assert verdict(record) is Verdict.DEAD


def test_a_reused_pid_is_another_process() -> None:
    other = dataclasses.replace(this_process(""), start_ticks=this_process("").start_ticks - 1)
    assert verdict(other) is Verdict.DEAD


@pytest.mark.parametrize("changes", [{"boot_id": "another"}, {"pid_namespace": "pid:[1]"}])
def test_what_another_boot_or_namespace_saw_is_unknown(changes: dict[str, Any], tag: str) -> None:
    gone = dataclasses.replace(this_process(""), pid=2**22 + 1, **changes)
    assert verdict(gone) is Verdict.UNKNOWN
    proof = prove_dead(node(gone, tag), "run")
    assert proof.verdict is Verdict.UNKNOWN
    assert "nobody can tell" in proof.evidence


def test_a_sweep_takes_marked_processes_of_all_sessions_and_nothing_else(tag: str) -> None:
    become_subreaper()
    with bystander() as neighbour, child(SLEEPER, tag[:-1]) as similar, child(SPLITTER, tag):
        assert len(marked(tag)) == 2
        swept = sweep(tag)
        assert len(swept.killed) == 2
        assert swept.alive == ()
        assert marked(tag) == []
        assert neighbour.poll() is None
        assert similar.poll() is None
        assert sweep(tag).killed == ()
    reap_orphans()


def test_a_sweep_takes_what_is_below_a_marked_process(tag: str) -> None:
    code = (
        "import os, signal, subprocess\n"
        "p = subprocess.Popen(['sleep', '1000'], env={}, start_new_session=True)\n"
        "print('up', flush=True); print(p.pid, flush=True); signal.pause()"
    )
    become_subreaper()
    with child(code, tag) as process:
        assert process.stdout is not None
        helper = int(process.stdout.readline())
        assert len(sweep(tag).killed) == 2
        assert not alive(helper)
    reap_orphans()


def test_a_keeper_may_finish_its_work_and_is_killed_only_if_it_does_not(tag: str) -> None:
    code = "import time; print('up', flush=True); time.sleep(0.3)"
    with child(code, tag, **{KEEPER_MARK: "1"}) as keeper:
        assert sweep(tag).killed == ()
        assert keeper.wait() == 0
    with child(SLEEPER, tag, **{KEEPER_MARK: "1"}) as keeper:
        assert len(sweep(tag).killed) == 1


def test_the_sweeper_and_its_parents_are_never_swept(tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = processes.environment
    mine = {os.getpid(), os.getppid()}
    mark = frozenset({f"{MARK}={tag}".encode()})
    monkeypatch.setattr(processes, "environment", lambda pid: mark if pid in mine else read(pid))
    monkeypatch.setattr(processes, "descendants", lambda *_: [])
    assert sweep(tag).killed == ()


def test_what_outlives_a_sweep_is_named(tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with child(SLEEPER, tag) as process:
        monkeypatch.setattr(processes, "kill", lambda _: False)
        swept = sweep(tag, within_s=0.1)
        assert swept.killed == ()
        assert [name.split()[0] for name in swept.alive] == [str(process.pid)]


def test_dead_means_that_nothing_it_started_lives(tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    become_subreaper()
    with child(SLEEPER) as agent, child(SPLITTER, tag):
        registered = node(record_of(agent.pid), tag)
        living = prove_dead(registered, "run")
        assert living.verdict is Verdict.ALIVE
        assert f"pid {agent.pid}) lives" in living.evidence
        assert len(marked(tag)) == 2
        agent.kill()
        agent.wait()
        with monkeypatch.context() as patch:
            patch.setattr(processes, "kill", lambda _: False)
            stuck = prove_dead(registered, "run", within_s=0.1)
        assert stuck.verdict is Verdict.UNKNOWN
        assert "SIGKILL does not end" in stuck.evidence
        proof = prove_dead(registered, "run")
        assert proof.verdict is Verdict.DEAD
        assert "ended what it had left" in proof.evidence
        assert marked(tag) == []
    reap_orphans()
    assert "left" not in prove_dead(registered, "run").evidence


def test_a_name_with_brackets_and_blanks_is_read_right(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "1000"]) as process:
        stat = processes.read_stat(process.pid)
        assert stat is not None
        assert stat.parent == os.getpid()
        process.kill()


def test_a_registration_with_another_jobs_mark_ends_nothing(tag: str) -> None:
    with child(SLEEPER, tag) as process:
        gone = dataclasses.replace(this_process(""), pid=2**22 + 1)
        proof = prove_dead(node(gone, tag), "another")
        assert proof.verdict is Verdict.UNKNOWN
        assert alive(process.pid)


def test_orphans_of_the_job_are_ended_and_those_with_a_keeper_are_left(tag: str) -> None:
    become_subreaper()
    job = f"job-{tag.rpartition('/')[2]}"
    with (
        child(SPLITTER, f"{job}/dead"),
        child(SLEEPER, f"{job}/living", **{KEEPER_MARK: "1"}) as keeper,
        child(SLEEPER, f"{job}2/other") as other,
    ):
        assert len(sweep_orphans(job)) == 2
        assert marked(f"{job}/dead") == []
        assert alive(keeper.pid)
        assert alive(other.pid)
    reap_orphans()
