"""The way into a starting Python: `nvrx_launcher.warm.hook` first on its path, and a socket to it."""

from __future__ import annotations

import fcntl
import os
import socket

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost the keeper a megabyte
    from collections.abc import Mapping
    from typing import Any

VARIABLE = "NVRX_HOOK"
WATCH = "watch"
WARM = "warm"
_HIGH_FD = 200
"""Where the socket lies in the process: descriptors that a program opens get the numbers they always get."""
_MAX_LINE_BYTES = 64 << 10


class Hook:
    """One hooked process, seen from the keeper. `order` says `mode`, `imports`, `later` and `folder`."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.mode: str = order["mode"]
        self._order = order
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)  # noqa: FBT003 - takes no keywords
        self.fd = self._ours.fileno()
        self._pending = b""

    def enter(self, env: Mapping[str, str]) -> dict[str, str]:
        """In the forked child: keep the socket over exec; returns the environment to exec with."""
        if self.mode == WARM:
            linux.yield_cpu()
        try:
            fd = fcntl.fcntl(self._theirs.fileno(), fcntl.F_DUPFD, _HIGH_FD)
        except OSError:  # so few descriptors are allowed
            fd = fcntl.fcntl(self._theirs.fileno(), fcntl.F_DUPFD, 3)
        given = env.get("PYTHONPATH")
        order = self._order
        words = (self.mode, str(fd), order["imports"], order["later"], "no-path" if given is None else "path")
        path = order["folder"] if not given else f"{order['folder']}{os.pathsep}{given}"
        return {**env, VARIABLE: " ".join(words), "PYTHONPATH": path}

    def started(self) -> None:
        """The process has its end of the socket: give ours of it back."""
        self._theirs.close()

    def read(self) -> tuple[list[str], bool]:
        """Sentences of the process, and whether more may come."""
        try:
            data = self._ours.recv(1 << 12)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        *lines, self._pending = (self._pending + data).split(b"\n")
        open_still = bool(data) and len(self._pending) <= _MAX_LINE_BYTES
        return [line.decode("utf-8", "surrogateescape") for line in lines], open_still

    def release(self, names: Mapping[str, str], wait_ms: int) -> bool:
        """Send an idle process its place; False if it does not take it at once, which it always would.

        It goes on after `wait_ms`.
        """
        entries = b"\0".join(
            f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in names.items()
        )
        frame = len(entries).to_bytes(4, "big") + wait_ms.to_bytes(4, "big") + entries
        try:
            return self._ours.send(frame, socket.MSG_NOSIGNAL) == len(frame)
        except OSError:
            return False

    def close(self) -> None:
        """Give the socket back."""
        self._ours.close()
        self._theirs.close()
