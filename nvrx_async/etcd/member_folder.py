"""Where a member of the job's own cluster keeps its data: a folder that its node's next agent finds again."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from nvrx_async.etcd.folder import SHARED_MEMORY, has_room

_PREFIX = "nvrx-member-"
_FORGOTTEN_S = 3600.0
"""A folder that nobody holds and nothing was written to for so long belongs to a job that is over."""


class MemberFolder:
    """A folder of mode 0700 that one process holds at a time, by flock(2): the lock ends with the process.

    It outlives the process, so that an agent which was killed and started again goes on with its member's data.
    `name` is the same for every agent that means this member. Blocks on the file system.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def take(cls, name: str) -> MemberFolder | None:
        """The folder, made if it is not there yet; None while another process holds it."""
        bases = (SHARED_MEMORY, Path(tempfile.gettempdir()))
        for base in bases:
            _remove_forgotten(base)
        folder = f"{_PREFIX}{os.getuid()}-{name}"
        found = next((base / folder for base in bases if (base / folder).is_dir()), None)
        path = found or (bases[0] if has_room() else bases[1]) / folder
        while True:
            path.mkdir(mode=0o700, exist_ok=True)
            try:
                lock = _locked(path)
            except FileNotFoundError:
                continue  # its last holder removed it just now
            if lock is None:
                return None
            if _is_still(path, lock):
                return cls(path, lock)
            os.close(lock)

    @property
    def data(self) -> Path:
        """For etcd's `--data-dir`."""
        return self.path / "data"

    @property
    def has_data(self) -> bool:
        """Whether a member has begun to write here."""
        return (self.data / "member" / "wal").is_dir()

    def wipe(self) -> None:
        """Delete the data and keep the folder."""
        shutil.rmtree(self.data, ignore_errors=True)

    def remove(self) -> None:
        """Delete it with all it holds, and let go."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Let go and leave what is in it; a folder that holds nothing goes too."""
        if self._lock >= 0:
            with suppress(OSError):
                self.path.rmdir()
            os.close(self._lock)
            self._lock = -1


def _locked(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    held = os.fstat(descriptor)
    if held.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)


def _remove_forgotten(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}{os.getuid()}-*"):
        with suppress(OSError):  # gone meanwhile, or not ours to judge
            written_s = max(entry.lstat().st_mtime for entry in (path, *path.rglob("*")))
            if time.time() - written_s < _FORGOTTEN_S:
                continue
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
