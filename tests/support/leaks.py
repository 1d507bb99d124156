"""What a test leaves behind: processes, descriptors, threads, shared memory. Looked at before and after, in full.

A process counts when it is a child of this one, or carries the mark of this test session in its environment,
however far it moved away (`setsid`, double fork, parent dead). What a fixture of a wider scope brings up is its
own until that fixture is gone. gRPC needs no exemption: a closed channel or server gives back its poller thread,
its event descriptors and its sockets.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "NVRX_TEST_SESSION"
SETTLE_S = 3.0
"""Bound for what is on its way out when a test ends: a killed process to vanish, a thread to return."""

SHARED_MEMORY = Path("/dev/shm")
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Resources:
    """What exists at a moment. Processes by pid, start (clock ticks) and command, descriptors by number and target.

    A server of a wider fixture may be killed and started anew by a test: the same command is the same server.
    """

    processes: frozenset[tuple[int, int, bytes]]
    descriptors: frozenset[tuple[int, str]]
    threads: frozenset[threading.Thread]
    shared_memory: frozenset[str]

    def __or__(self, other: Resources) -> Resources:
        return Resources(
            self.processes | other.processes,
            self.descriptors | other.descriptors,
            self.threads | other.threads,
            self.shared_memory | other.shared_memory,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            frozenset(one for one in self.processes - other.processes if not other._runs(one[2])),
            self.descriptors - other.descriptors,
            self.threads - other.threads,
            self.shared_memory - other.shared_memory,
        )

    def _runs(self, command: bytes) -> bool:
        return command != b"" and any(command == running for _, _, running in self.processes)

    def __bool__(self) -> bool:
        return self.is_private or bool(self.shared_memory)

    @property
    def is_private(self) -> bool:
        """Whether some of it can be nobody else's."""
        return bool(self.processes or self.descriptors or self.threads)


def adopt_no_orphans() -> None:
    """Be no sub-reaper, which the agent's side of the keeper makes its process for good (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def take(mark: str) -> Resources:
    """Look at everything."""
    return Resources(
        frozenset(_processes(mark)),
        frozenset(_descriptors()),
        frozenset(threading.enumerate()),
        frozenset(shared_memory()),
    )


def shared_memory() -> list[str]:
    """Names of what lies in shared memory."""
    return os.listdir(SHARED_MEMORY) if SHARED_MEMORY.exists() else []


def left_in_shared_memory(before: Iterable[str]) -> list[str]:
    """Names of what came since and is nobody else's."""
    return sorted(name for name in set(shared_memory()) - set(before) if not _is_someone_elses(name))


def left_over(mark: str, allowed: Resources) -> list[str]:
    """Names of all that is there and not allowed, after what is on its way out had SETTLE_S to leave."""
    return settled(mark, allowed)[0]


def settled(mark: str, allowed: Resources) -> tuple[list[str], Resources]:
    """What is there and not allowed, after what is on its way out had SETTLE_S to leave; and all that is there."""
    there = take(mark)
    left = there - allowed
    if left:
        gc.collect()  # what only a reference cycle holds is no leak of the product
    deadline = time.monotonic() + SETTLE_S
    while left and time.monotonic() < deadline:
        if not left.is_private and all(_is_someone_elses(name) for name in left.shared_memory):
            break
        time.sleep(0.01)  # descriptors of gRPC's own threads and orphans' exits announce themselves to nobody
        there = take(mark)
        left = there - allowed
    return sorted(_described(left)), there


def _described(left: Resources) -> Iterator[str]:
    yield from (f"process {pid}: {_command(pid)}" for pid, _, _ in left.processes)
    yield from (f"descriptor {number}: {target}" for number, target in left.descriptors)
    yield from (f"thread {thread.name}" for thread in left.threads)
    yield from (f"/dev/shm/{name}" for name in left.shared_memory if not _is_someone_elses(name))


# Tasks

TestFunction = Callable[..., Coroutine[Any, Any, None]]


def without_leftover_tasks(function: TestFunction) -> TestFunction:
    """The test, failing when tasks that it brought up are still there SETTLE_S after it returned."""

    @functools.wraps(function)
    async def checked(*args: Any, **kwargs: Any) -> None:
        before = asyncio.all_tasks()
        await function(*args, **kwargs)
        left = asyncio.all_tasks() - before
        if left:
            _, left = await asyncio.wait(left, timeout=SETTLE_S)
        assert not left, f"tasks outlived the test: {left}"

    return checked


# Processes


def _processes(mark: str) -> Iterator[tuple[int, int, bytes]]:
    """What is ours, by pid, start and command. Looked for after every test: strangers cost one read each."""
    me, strangers = os.getpid(), _strangers(mark)
    for pid in _all_processes():
        try:
            parent, started = _stat(pid)
            if (pid, started) not in strangers and (parent == me or _is_marked(pid, mark)):
                yield pid, started, _read(pid, "cmdline")
        except OSError:  # it ended meanwhile, or is another user's
            continue


@functools.cache
def _strangers(mark: str) -> frozenset[tuple[int, int]]:
    """What was there at the first look and is not ours. Nobody gets the mark later who does not descend from us."""
    me, found = os.getpid(), set()
    for pid in _all_processes():
        try:
            parent, started = _stat(pid)
            if parent != me and not _is_marked(pid, mark):
                found.add((pid, started))
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return frozenset(found)


def _is_marked(pid: int, mark: str) -> bool:
    return f"{MARK}={mark}".encode() in _read(pid, "environ").split(b"\0")


def _all_processes() -> list[int]:
    """All but this one."""
    me = os.getpid()
    return [pid for name in os.listdir("/proc") if name.isdigit() and (pid := int(name)) != me]


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.readall()


def _stat(pid: int) -> tuple[int, int]:
    """Parent and start: fields 4 and 22 of proc(5), counted behind the command, which may hold anything."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


def _command(pid: int) -> str:
    try:
        state = _read(pid, "stat").rpartition(b")")[2].split()[0].decode()
        words = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone meanwhile)"
    return words or f"(state {state}: nobody waited for it)"


# Descriptors, threads, shared memory


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor that listed the folder
            continue
        yield int(name), target


def _is_someone_elses(name: str) -> bool:
    """Whether it vanished meanwhile, a process that is not of this session has it open, or nobody can tell whose it is.

    Shared memory carries no mark: beside another session of tests on this machine it proves nothing. Of tests run
    in several processes each is such a session to the others, and the one above them looks when they are gone.
    """
    path = SHARED_MEMORY / name
    if not path.exists() or _another_session_is_at_work():
        return True
    return any(_holds(pid, str(path)) for pid in _all_processes())


def _another_session_is_at_work() -> bool:
    """Whether a process runs tests that is neither this one nor below or above it."""
    return any(_runs_tests(pid) for pid in set(_all_processes()) - _kin())


def _kin() -> set[int]:
    """This process and those above it."""
    kin, pid = set(), os.getpid()
    while pid:
        kin.add(pid)
        pid = _stat(pid)[0]
    return kin


def _runs_tests(pid: int) -> bool:
    try:
        words, inherited = _read(pid, "cmdline").split(b"\0"), _read(pid, "environ").split(b"\0")
    except OSError:
        return False
    mine = f"{MARK}={os.environ.get(MARK, '')}".encode()
    foreign = any(word.startswith(f"{MARK}=".encode()) and word != mine for word in inherited)
    return foreign or (any(word.endswith(b"pytest") for word in words[:3]) and mine not in inherited)


def _holds(pid: int, path: str) -> bool:
    try:
        targets = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        maps = _read(pid, "maps").decode(errors="replace")
    except OSError:
        return False
    return path in maps or any(target.startswith(path) for target in targets)
