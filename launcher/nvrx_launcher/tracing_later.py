"""Calls that nobody waits for, made a little later by a thread: what telemetry makes of a restart is not in its way.

The agent's loop notes what happened, which costs an append. The thread makes spans and numbers of it once the
restart that may have begun is over, in the order in which things happened.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVarTuple

import anyio

from nvrx_async.aside import aside

PAUSE_S = 0.2
"""A restart with warm workers takes half as long. Spans of a fault are on their way in well under a second."""

Arguments = TypeVarTuple("Arguments")


class Later:
    """See the module. `fails` hears in the thread what a call raised; those behind it are made all the same.

    `turns` is entered by the thread while it works.
    """

    def __init__(
        self, fails: Callable[[Exception], None], turns: AbstractContextManager[None] | None = None
    ) -> None:
        self._turns = turns or nullcontext()
        self._fails = fails
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._one_at_a_time = threading.Lock()
        self._wanted = anyio.Event()
        self._awaited = False

    def put(self, call: Callable[[*Arguments], object], *arguments: *Arguments) -> None:
        """Have this called. For the agent's loop only."""
        self._calls.append((call, arguments))
        if not self._awaited:
            self._awaited = True
            self._wanted.set()

    async def serve(self) -> None:
        """Have calls made until cancelled."""
        while True:
            await self._wanted.wait()
            await anyio.sleep_until(anyio.current_time() + PAUSE_S)
            await self.settle()

    async def settle(self) -> None:
        """Have all calls made now. Whoever stops waiting leaves the thread to it."""
        if self._awaited:  # else `serve` waits for this very event
            self._wanted, self._awaited = anyio.Event(), False
        # Where no thread can be started they are made the next time.
        with suppress(OSError):
            await aside(self._make)

    def _make(self) -> None:
        with self._one_at_a_time, self._turns:
            while self._calls:
                call, arguments = self._calls.popleft()
                try:
                    call(*arguments)
                except Exception as error:  # noqa: BLE001 - outermost frame of a helper: it is told, training goes on
                    self._fails(error)
