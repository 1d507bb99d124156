"""Files that grow, told by the kernel (inotify(7))."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import anyio

_IN_MODIFY = 0x2
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16


class Growth:
    """Watches files until the block is left.

    Raises on entering:
        OSError: the kernel watches no more files for this user.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._fd = -1
        self._by_watch: dict[int, Path] = {}

    def __enter__(self) -> Self:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for path in self._paths:
            watch = libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY)
            if watch < 0:
                code = ctypes.get_errno()
                os.close(self._fd)
                raise OSError(code, f"{os.strerror(code)}: {path} (sysctl fs.inotify.max_user_watches)")
            self._by_watch[watch] = path
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    async def grown(self) -> tuple[Path, ...]:
        """Wait until some of the files were written to; each of them once."""
        await anyio.wait_readable(self._fd)
        data = os.read(self._fd, _BUFFER_BYTES)
        found: dict[Path, None] = {}
        at = 0
        while at < len(data):
            watch, _, _, name_bytes = _EVENT.unpack_from(data, at)
            at += _EVENT.size + name_bytes
            if watch in self._by_watch:
                found[self._by_watch[watch]] = None
        return tuple(found)
