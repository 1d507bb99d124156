"""What `/proc` tells about processes, and a SIGKILL that cannot hit a process which reused the pid."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost the keeper a megabyte
    from collections.abc import Collection, Mapping

_DEAD_STATES = frozenset("ZXx")
_SIGWAIT = {"x86_64": b"128", "aarch64": b"137"}
"""Numbers of the system call rt_sigtimedwait."""
_SIGSET_BYTES = 8


class Stat:
    """A line of `/proc/<pid>/stat`. `pid` and `start_ticks` together name a process for all its life."""

    __slots__ = ("parent", "pid", "session", "start_ticks", "state")

    def __init__(self, pid: int, state: str, parent: int, session: int, start_ticks: int) -> None:
        self.pid = pid
        self.state = state
        self.parent = parent
        self.session = session
        self.start_ticks = start_ticks

    @property
    def alive(self) -> bool:
        """Whether it can still do anything. A zombie cannot."""
        return self.state not in _DEAD_STATES


def read_stat(pid: int) -> Stat | None:
    """The process as it is now, None if there is none of this pid in this pid namespace."""
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name in brackets may hold blanks and brackets; the last ')' ends it.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def table() -> dict[int, Stat]:
    """All processes that this one can see."""
    found = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - pathlib costs memory
    return {stat.pid: stat for stat in found if stat is not None}


def descendants(
    processes: Mapping[int, Stat], roots: Collection[int], besides: Collection[int] = ()
) -> list[Stat]:
    """All processes below the roots, zombies included, parents before their children.

    Those in `besides` are left out, with all that is below them.
    """
    children: dict[int, list[Stat]] = {}
    for stat in processes.values():
        children.setdefault(stat.parent, []).append(stat)
    below: list[Stat] = []
    todo = list(roots)
    for pid in todo:  # grows while it is walked
        for child in children.get(pid, ()):
            if child.pid in besides:
                continue
            below.append(child)
            todo.append(child.pid)
    return below


def kill(stat: Stat) -> bool:
    """SIGKILL exactly this process; False if it is gone or may not be killed by this user."""
    try:
        pidfd = os.pidfd_open(stat.pid)
    except OSError:
        return False
    try:
        now = read_stat(stat.pid)
        if now is None or now.start_ticks != stat.start_ticks:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(pidfd)


def expects(pid: int, signum: int) -> bool:
    """Whether the process catches, blocks (to wait for it) or ignores this signal, so that it does not end it."""
    masks = (
        int(value, 16)
        for name, _, value in (line.partition(b":") for line in _read(f"/proc/{pid}/status").split(b"\n"))
        if name in (b"SigCgt", b"SigBlk", b"SigIgn")
    )
    return any(mask >> (signum - 1) & 1 for mask in masks) or _waits_for(pid, signum)


def _waits_for(pid: int, signum: int) -> bool:
    """Whether its first thread is in `sigwait` for this signal.

    Until it comes, the kernel does not tell of it as blocked. The set is in the process's memory, which its parent
    may read.
    """
    number, address = (*_read(f"/proc/{pid}/syscall").split(), b"", b"")[:2]
    if number != _SIGWAIT.get(os.uname().machine):
        return False
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return False
    try:
        mask = int.from_bytes(os.pread(fd, _SIGSET_BYTES, int(address, 16)), sys.byteorder)
    except OSError:
        return False
    finally:
        os.close(fd)
    return bool(mask >> (signum - 1) & 1)


def ignores(pid: int, signum: int) -> bool:
    """Whether a signal would do nothing: ignored, and not blocked, as it is on the way from fork to exec."""
    masks = {
        name: int(value, 16) >> (signum - 1) & 1
        for name, _, value in (line.partition(b":") for line in _read(f"/proc/{pid}/status").split(b"\n"))
        if name in (b"SigIgn", b"SigBlk")
    }
    return bool(masks.get(b"SigIgn") and not masks.get(b"SigBlk"))


def environment(pid: int) -> frozenset[bytes]:
    """`NAME=value` as the process got them at its exec; empty for zombies and processes of other users."""
    return frozenset(_read(f"/proc/{pid}/environ").split(b"\0"))


def _read(path: str) -> bytes:
    """All of a file in /proc, empty if it cannot be read: processes come and go while we look."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        chunks = []
        while chunk := os.read(fd, 1 << 16):
            chunks.append(chunk)
        return b"".join(chunks)
    except OSError:
        return b""
    finally:
        os.close(fd)
