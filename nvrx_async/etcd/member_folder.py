"""Where a member of the job's own cluster keeps its data: a folder that its node's next agent finds again."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from nvrx_async.etcd.folder import base_with_room, bases, is_still, taken
from nvrx_async.etcd.owner import FILE, Owner

MEMBER_PREFIX = "nvrx-member-"


class MemberFolder:
    """A folder of mode 0700 that one process holds at a time, by flock(2): the lock ends with the process.

    It outlives the process, so that an agent which was killed and started again goes on with its member's data.
    `name` is the same for every agent that means this member; `owner` is noted in it for who finds it later (see
    `nvrx_async.etcd.leftovers`). Blocks on the file system.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def take(cls, name: str, owner: Owner | None = None) -> MemberFolder | None:
        """The folder, made if it is not there yet; None while another process holds it."""
        folder = f"{MEMBER_PREFIX}{os.getuid()}-{name}"
        found = next((base / folder for base in bases() if (base / folder).is_dir()), None)
        path = found or base_with_room() / folder
        while True:
            path.mkdir(mode=0o700, exist_ok=True)
            try:
                lock = taken(path)
            except FileNotFoundError:
                continue  # its last holder removed it just now
            if lock is None:
                return None
            if os.fstat(lock).st_uid != os.getuid():
                os.close(lock)
                raise PermissionError(f"{path} belongs to another user")
            if is_still(path, lock):
                if owner is not None:
                    owner.write(path)
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
        """Let go and leave what is in it; a folder without data goes too."""
        if self._lock >= 0:
            with suppress(OSError):
                if not self.data.exists():
                    (self.path / FILE).unlink(missing_ok=True)
                self.path.rmdir()
            os.close(self._lock)
            self._lock = -1
