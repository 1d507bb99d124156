"""What tests of the keeper share: a keeper with its logs in a folder, and events to wait for."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import uuid
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio

from nvrx_launcher.keeper import processes
from nvrx_launcher.keeper.linux import boottime_s
from nvrx_launcher.keeper_events import KeeperEvent, RoundGone
from nvrx_launcher.keeper_link import Keeper
from nvrx_launcher.sweep import MARK
from nvrx_launcher.workers import RankCommand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

E = TypeVar("E", bound=KeeperEvent)
PATIENCE_S = 20.0


def marked(tag: str) -> list[int]:
    """Living processes with the mark."""
    mark = f"{MARK}={tag}".encode()
    return [
        pid for pid, stat in processes.table().items() if stat.alive and mark in processes.environment(pid)
    ]


def alive(pid: int) -> bool:
    stat = processes.read_stat(pid)
    return stat is not None and stat.alive


async def death(pid: int, within_s: float = PATIENCE_S) -> None:
    """Return when the process is dead."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with anyio.fail_after(within_s):
            await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


class Bench:
    """A keeper under test: `run` starts shell lines as ranks, `until` waits for an event."""

    def __init__(self, keeper: Keeper, folder: Path, tag: str) -> None:
        self.keeper = keeper
        self.folder = folder
        self.tag = tag
        self.seen: list[KeeperEvent] = []

    def path(self, local_rank: int, stream: str = "stdout") -> Path:
        return self.folder / f"{local_rank}.{stream}"

    def command(self, local_rank: int, words: Sequence[str], **changes: object) -> RankCommand:
        fields: dict[str, object] = {
            "local_rank": local_rank,
            "argv": tuple(words),
            "env": {"PATH": os.environ["PATH"], MARK: self.tag},
            "cwd": str(self.folder),
            "stdout_path": str(self.path(local_rank)),
            "stderr_path": str(self.path(local_rank, "stderr")),
        }
        return RankCommand(**{**fields, **changes})  # type: ignore[arg-type]

    def run(self, *lines: str, round: int = 0, good_for_s: float = 60.0) -> None:  # noqa: A002 - the domain's word
        self.keeper.good_until(boottime_s() + good_for_s)
        ranks = [self.command(number, ["sh", "-c", line]) for number, line in enumerate(lines)]
        self.keeper.start_ranks(round, ranks)

    async def until(self, kind: type[E], *, within_s: float = PATIENCE_S) -> E:
        """The next event of this kind; others are noted in `seen`."""
        with anyio.fail_after(within_s):
            async for event in self.keeper.events:
                self.seen.append(event)
                if isinstance(event, kind):
                    return event
        raise AssertionError(f"the keeper ended before {kind.__name__}: {self.seen}")

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def wait_for_line(self, line: str, local_rank: int = 0) -> None:
        """Return when the rank has written this line to stdout."""
        while True:
            self.keeper.seen(local_rank, "stdout")
            path = self.path(local_rank)
            if path.exists() and line in path.read_text().splitlines():
                return
            with anyio.fail_after(PATIENCE_S):
                self.seen.append(await self.keeper.events.receive())

    async def gone(self) -> RoundGone:
        return await self.until(RoundGone)


@asynccontextmanager
async def bench(folder: Path, generation: int = 1, **options: object) -> AsyncIterator[Bench]:
    """A keeper whose every process must be gone at the end."""
    tag = f"test/{folder.name}/{uuid.uuid4().hex}"
    async with Keeper.start(generation, tag, **options) as keeper:  # type: ignore[arg-type]
        yield Bench(keeper, folder, tag)
    assert marked(tag) == []


def python(code: str) -> str:
    """A shell line that becomes this Python program."""
    return f"exec {shlex.quote(sys.executable)} -I -S -u -c {shlex.quote(code)}"


@contextmanager
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process, with a child of its own, that no sweep may touch."""
    with subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(ChildProcessError):
                while True:  # its child came to this process, which is sub-reaper
                    os.waitpid(-process.pid, 0)


def reap_orphans() -> None:
    """This process is sub-reaper: what agents under test leave at their death comes to it."""
    for stat in processes.table().values():
        if stat.parent == os.getpid() and not stat.alive:
            os.waitpid(stat.pid, os.WNOHANG)
