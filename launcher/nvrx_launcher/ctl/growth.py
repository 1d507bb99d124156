"""Files that grow and folders that get new entries, told by the kernel (inotify(7))."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Self

import anyio

_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE, _IN_Q_OVERFLOW = 0x2, 0x80, 0x100, 0x4000
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16


class Growth:
    """Watches what was added, until the block is left."""

    def __init__(self) -> None:
        self._fd = -1
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._by_watch: dict[int, Path] = {}
        self._known: set[Path] = set()

    def __enter__(self) -> Self:
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def add(self, path: Path) -> bool:
        """Watch a file or a folder too; whether it is new. What is gone meanwhile is passed over.

        Raises:
            OSError: the kernel watches no more files for this user.
        """
        if path in self._known:
            return False
        mask = _IN_CREATE | _IN_MOVED_TO if path.is_dir() else _IN_MODIFY
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if watch < 0:
            code = ctypes.get_errno()
            if code == errno.ENOENT:
                return False
            raise OSError(code, f"{os.strerror(code)}: {path} (sysctl fs.inotify.max_user_watches)")
        self._by_watch[watch] = path
        self._known.add(path)
        return True

    async def grown(self) -> tuple[Path, ...]:
        """Wait until something was written to a file, or made in a folder; each of them once."""
        await anyio.wait_readable(self._fd)
        data = os.read(self._fd, _BUFFER_BYTES)
        found: dict[Path, None] = {}
        at = 0
        while at < len(data):
            watch, mask, _, name_bytes = _EVENT.unpack_from(data, at)
            at += _EVENT.size + name_bytes
            if mask & _IN_Q_OVERFLOW:  # the kernel has forgotten some: any of them may be meant
                return tuple(self._known)
            if watch in self._by_watch:
                found[self._by_watch[watch]] = None
        return tuple(found)
