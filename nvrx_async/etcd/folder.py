"""A private folder for a server's data: removed at the end, or by whoever starts next if its owner was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from nvrx_async.etcd.owner import Owner

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
PRIVATE_PREFIX = "nvrx-server-"
_TMPFS_FREE_BYTES = 1 << 30
"""etcd preallocates 64 MiB of write-ahead log at a time and keeps five, beside its database and snapshots."""
_TRIES = 100


class PrivateFolder:
    """Mode 0700, in memory where that has room: etcd waits for the disk at each write.

    Its lock, flock(2) on the folder, lasts as long as this process: a folder without one is a leftover.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=base_with_room()))
        self._lock = taken(self.path)
        Owner.this("").write(self.path)

    def remove(self) -> None:
        """Delete it with all it holds."""
        shutil.rmtree(self.path)
        if self._lock is not None:
            os.close(self._lock)


def bases() -> tuple[Path, Path]:
    """Where folders of servers may be."""
    return SHARED_MEMORY, Path(tempfile.gettempdir())


def base_with_room() -> Path:
    """Memory where it has room."""
    memory, disk = bases()
    return memory if _has_room(memory) else disk


def locked(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, None if another process has it; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:  # a file system without locks
        os.close(descriptor)
        raise
    return descriptor


def taken(folder: Path) -> int | None:
    """The same for who means to keep it: who only looks for leftovers, and holds it for microseconds, is outwaited."""
    for _ in range(_TRIES):
        lock = locked(folder)
        if lock is not None:
            return lock
        os.sched_yield()
    return None


def is_still(path: Path, descriptor: int) -> bool:
    """Whether the folder that was opened is the one that is there now."""
    held = os.fstat(descriptor)
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)


def _has_room(memory: Path) -> bool:
    try:
        room = os.statvfs(memory)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize >= _TMPFS_FREE_BYTES and os.access(memory, os.W_OK)
