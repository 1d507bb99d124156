"""A private folder for a server's data, removed at the end, or by the next server if its owner was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
_PREFIX = "nvrx-server-"
_TMPFS_FREE_BYTES = 1 << 30
"""etcd preallocates 64 MiB of write-ahead log at a time and keeps five, beside its database and snapshots."""

_SETTLED_S = 60.0
"""A younger folder may be one whose owner has not locked it yet."""


class PrivateFolder:
    """Mode 0700, in memory where that has room: etcd waits for the disk at each write.

    Its lock, flock(2) on the folder, lasts as long as this process: a folder without one is a leftover.
    """

    def __init__(self) -> None:
        base = SHARED_MEMORY if has_room() else Path(tempfile.gettempdir())
        _remove_leftovers(base)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        self._lock = _locked(self.path)

    def remove(self) -> None:
        """Delete it with all it holds."""
        shutil.rmtree(self.path)
        if self._lock is not None:
            os.close(self._lock)


def has_room() -> bool:
    """Whether data of a server fit into memory."""
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize >= _TMPFS_FREE_BYTES and os.access(SHARED_MEMORY, os.W_OK)


def _remove_leftovers(base: Path) -> None:
    for folder in base.glob(f"{_PREFIX}*"):
        try:
            known = folder.lstat()
            if known.st_uid != os.getuid() or time.time() - known.st_mtime < _SETTLED_S:
                continue
            lock = _locked(folder)
        except OSError:
            continue  # gone meanwhile, or not ours to judge
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, None if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
