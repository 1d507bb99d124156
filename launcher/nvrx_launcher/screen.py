"""A thread that writes where writing may take for ever.

A console may take nothing for hours (Ctrl-S, a pager, a full pipe), and a disk too. Only such a thread waits for
it: the agent must go on renewing its lease, or its ranks would be killed for a stuck terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio

CLOSE_LIMIT_S = 2.0
"""How long the end of the agent waits for a console that takes none of its last words."""


class Screen:
    """Does what it is given, in order. A job must not raise.

    `progress` grows while the jobs get on: at the end a slow console is waited for, a stuck one is not.
    """

    def __init__(self, progress: Callable[[], int] = lambda: 0) -> None:
        self._progress = progress
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a console that stays stuck must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs.put(None)
        seen = -1
        while self._thread.is_alive() and (now := self._progress()) != seen:
            seen = now
            self._thread.join(CLOSE_LIMIT_S)

    def do(self, job: Callable[[], None]) -> None:
        """Do it after all that was given before. Never blocks."""
        self._jobs.put(job)

    async def drain(self, limit_s: float) -> None:
        """Return when all that was given until now is done, after `limit_s` at the latest."""
        loop, done = asyncio.get_running_loop(), anyio.Event()
        self.do(lambda: call_in(loop, done.set))
        with anyio.move_on_after(limit_s):
            await done.wait()

    def settle(self) -> None:
        """Block another thread until what was given before is done, or nothing moves for CLOSE_LIMIT_S."""
        done, seen = threading.Event(), -1
        self.do(done.set)
        while not done.is_set() and (now := self._progress()) != seen:
            seen = now
            done.wait(CLOSE_LIMIT_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def call_in(loop: asyncio.AbstractEventLoop, job: Callable[[], None]) -> None:
    """Call `job` in the event loop's thread; nothing happens if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(job)
