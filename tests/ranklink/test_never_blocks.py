"""No report ever waits for an agent: one that is stopped, one that was killed, one that takes no connection.

The rank of these tests is a process of its own and the agent's end another, so that both can be stopped for real.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvrx_async.ranklink.messages import PAGE_VARIABLE, SOCKET_VARIABLE, STACKS_VARIABLE
from nvrx_async.ranklink.page import Page

BEATS = 20_000
"""NVIDIA's client blocks after 139 with a stopped monitor: its socket is full."""
BOUND_S = 60.0

AGENT = """
import anyio, sys
from nvrx_async.ranklink.agent import RankLinkServer

async def main():
    async with anyio.create_task_group() as tasks:
        await tasks.start(RankLinkServer(sys.argv[1], print).serve)
        print("listens", flush=True)

anyio.run(main)
"""

RANK = f"""
import sys, nvrx_async
with nvrx_async.connect() as rank:
    print("connected", rank.connected, flush=True)
    sys.stdin.readline()
    for step in range({BEATS}):
        rank.heartbeat()
        with rank.section("save"):
            rank.progress(step=step)
        rank.should_stop(step)
    print("reported", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def agent(path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", AGENT, path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert hears(process) == "listens"
            yield process
        finally:
            process.kill()


@contextmanager
def rank(path: Path, page: Page, folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        SOCKET_VARIABLE: str(path),
        PAGE_VARIABLE: page.path,
        STACKS_VARIABLE: str(folder / "stacks.txt"),
    }
    command = [sys.executable, "-c", RANK]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def hears(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], BOUND_S)
    assert ready, "it says nothing: it is blocked"
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def stopped(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page.create(0, 0)
    yield made
    made.close()


@pytest.mark.parametrize("end", [stopped, killed])
@pytest.mark.parametrize("when", ["before it connects", "after it connected"])
def test_thousands_of_reports_do_not_wait_for_the_agent(page: Page, tmp_path: Path, end, when: str) -> None:
    path = tmp_path / "agent.sock"
    with agent(path) as served:
        if when == "before it connects":
            end(served)
        with rank(path, page, tmp_path) as reporting:
            assert hears(reporting) == "connected True"
            if when == "after it connected":
                end(served)
            go_on(reporting)
            assert hears(reporting) == "reported"
            seen = page.view(0)
            assert seen.step == BEATS - 1, "every report is on the page"
            assert seen.principal is not None
            assert seen.principal.reports >= 2 * BEATS
            go_on(reporting)
            reporting.wait(BOUND_S)
            assert reporting.returncode == 0


def test_a_full_queue_of_connections_keeps_no_rank_from_its_work(page: Page, tmp_path: Path) -> None:
    """A stopped agent whose backlog is full: connect(2) of a unix socket would block."""

    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as deaf, socket.socket(socket.AF_UNIX) as first:
        deaf.bind(str(path))
        deaf.listen(0)
        first.connect(str(path))
        with rank(path, page, tmp_path) as reporting:
            assert hears(reporting) == "connected True"
            go_on(reporting)
            assert hears(reporting) == "reported"
            go_on(reporting)
            reporting.wait(BOUND_S)
            assert reporting.returncode == 0
