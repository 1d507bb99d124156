"""What an agent's log folder makes it wait for, where etcd knows nothing of the job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from nvrx_async.job.codec import encode
from nvrx_async.job.records import Assignment, JobSpec, Node, Process, Seat
from nvrx_launcher.earlier import earlier_attempt
from nvrx_launcher.keeper.processes import read_stat
from nvrx_launcher.sweep import this_process

SPEC = JobSpec(("train.py",), 1, 2, 0, 6, 1.0, 120.0, 600.0, 30.0)
SEATED_S, LONGEST_S = 10.0, 130.0
"""TTL, 3 s and the kill time; and the outage limit beside them."""


@pytest.fixture
def dead() -> Process:
    """A process of this host and boot that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stat = read_stat(child.pid)
        assert stat is not None
        child.communicate()
    return replace(this_process("job/00"), pid=stat.pid, start_ticks=stat.start_ticks)


class Folder:
    """A log folder whose history is written line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, value: bytes, **more: Any) -> Folder:
        line = {"record": kind, **more, **orjson.loads(value)}
        with (self.path / "history.jsonl").open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")
        return self

    def registered(
        self, name: str, process: Process, *, attempt: int = 0, host: str = "", launch: str = ""
    ) -> Folder:
        node = Node(
            name, f"{name}-1", host or socket.gethostname(), "127.0.0.1", 2, process, "2026-01-01T00:00:00Z"
        )
        self.add("registered", encode(node), attempt=attempt)
        return self.add("spec", encode(SPEC), launch_id=launch or None)

    def runs(self, number: int, *names: str, world_size: int) -> Folder:
        self.add("round", b"{}", attempt=0, schema=1, number=number, world_size=world_size)
        for rank, name in enumerate(names):
            seat = Seat(name, f"{name}-1", socket.gethostname(), rank, 2 * rank, 2)
            given = Assignment(number, seat, world_size, world_size // 2, "127.0.0.1", 1)
            self.add("assignment", encode(given))
        return self

    def wait_s(self, *, node_id: str | None = None, launch: str | None = None) -> float | None:
        found = earlier_attempt(self.path, "job", node_id, launch)
        return found.wait_s if found is not None else None


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_without_a_history_there_is_nothing_to_wait_for(folder: Folder) -> None:
    assert folder.wait_s() is None
    (folder.path / "history.jsonl").write_bytes(b'garbage\n{"record":"registered","att\n\n')
    assert folder.wait_s() is None


def test_ranks_on_other_nodes_are_waited_for_until_their_leases_end(folder: Folder, dead: Process) -> None:
    folder.registered("a", dead).runs(0, "a", world_size=4)
    found = earlier_attempt(folder.path, "job", None, None)
    assert found is not None
    assert (found.attempt, found.wait_s) == (0, SEATED_S)
    assert found.path.endswith("history.jsonl")


def test_a_verdict_ends_the_wait(folder: Folder, dead: Process) -> None:
    folder.registered("a", dead).runs(0, "a", world_size=4).add("outcome", b"{}", schema=1)
    assert folder.wait_s() is None
    folder.registered("a", dead, attempt=1)
    assert folder.wait_s() == SEATED_S, "and the next attempt has none"


def test_a_world_that_was_here_alone_is_proven_over(folder: Folder, dead: Process) -> None:
    folder.registered("a", dead).runs(0, "a", world_size=4).runs(1, "a", world_size=2)
    assert folder.wait_s() is None


def test_who_had_no_seat_in_the_last_round_proves_little(folder: Folder, dead: Process) -> None:
    """Nobody asks it for a promise: the others may run on without etcd, as long as the limit allows."""
    folder.registered("a", dead).runs(0, "a", world_size=4).runs(1, world_size=2)
    assert folder.wait_s() == LONGEST_S


def test_nor_does_one_that_may_live(folder: Folder, dead: Process) -> None:
    for process in (this_process("job/00"), replace(dead, boot_id="another"), replace(dead, tag="other/00")):
        (folder.path / "history.jsonl").unlink(missing_ok=True)
        folder.registered("a", process).runs(0, "a", world_size=4)
        assert folder.wait_s() == LONGEST_S
    (folder.path / "history.jsonl").unlink()
    folder.registered("a", dead, host="another").runs(0, "a", world_size=4)
    assert folder.wait_s() == LONGEST_S, "of a node that is not known to be this one"
    assert folder.wait_s(node_id="a") == SEATED_S


def test_a_scheduler_that_restarted_the_job_proves_it_over(folder: Folder, dead: Process) -> None:
    folder.registered("a", dead, launch="slurm-7.0").runs(0, "a", world_size=4)
    assert folder.wait_s(launch="slurm-7.1") is None
    assert folder.wait_s(launch="slurm-7.0") == SEATED_S
    assert folder.wait_s(launch="slurm-8.1") == SEATED_S


def test_a_line_that_was_cut_short_costs_no_other(folder: Folder, dead: Process) -> None:
    folder.registered("a", dead).runs(0, "a", world_size=4)
    with (folder.path / "history.jsonl").open("ab") as file:
        file.write(b'{"record":"round","attempt":0,"number":7')
    assert folder.wait_s() == SEATED_S
    assert os.listdir(folder.path) == ["history.jsonl"]
