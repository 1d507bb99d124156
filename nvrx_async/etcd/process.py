"""A child process that dies with this one, and whose exit is an event."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TRAMPOLINE = Path(__file__).with_name("trampoline.py")


class Child:
    """A running child. Start it on the main thread: the kernel ties parent-death signals to threads."""

    def __init__(self, program: Sequence[str], *, output: int, env: Mapping[str, str]) -> None:
        # An own session keeps a terminal's Ctrl-C away: whoever owns the child ends it in order.
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_TRAMPOLINE), str(os.getpid()), *program],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._popen.pid)
        self.exited = anyio.Event()

    @property
    def pid(self) -> int:
        """Process id; valid until `wait` has returned."""
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """Exit code, or the negative signal number; None while it runs."""
        return self._popen.returncode

    async def wait(self) -> None:
        """Wait for the exit, reap the child, and set `exited`. One task only."""
        await anyio.wait_readable(self._pidfd)
        self._reap()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s`; nothing of it is left afterwards. Not beside `wait`."""
        with anyio.CancelScope(shield=True):
            if self._popen.returncode is None:
                self._popen.send_signal(signal.SIGTERM)
                with anyio.move_on_after(grace_s):
                    await self.wait()
            if self._popen.returncode is None:
                self._popen.kill()
                await self.wait()

    def close(self) -> None:
        """Release the descriptor; a second time is no error."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _reap(self) -> None:
        self._popen.wait()  # returns at once: the pidfd said so
        self.exited.set()
