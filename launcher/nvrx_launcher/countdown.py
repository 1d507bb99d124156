"""Tells how long ranks that are being stopped still have, every few seconds, until they are gone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import anyio

from nvrx_launcher.clock import boottime_s
from nvrx_launcher.wording import duration, number_list

EVERY_S = 5.0
_NOW_S = 0.1
"""As good as now."""


class Countdown:
    """`begin` and `over` tell it what happens; `serve` is a task of the agent."""

    def __init__(self, say: Callable[[str], None], clock_s: Callable[[], float] = boottime_s) -> None:
        self._say = say
        self._clock_s = clock_s
        self._begun = anyio.Event()
        self._over = anyio.Event()
        self._running: Callable[[], Sequence[int]] = tuple
        self._kill_at_s = math.inf

    def begin(self, running: Callable[[], Sequence[int]], grace_s: float) -> None:
        """The ranks that `running` gives were told to end and will be killed after the grace (s)."""
        self._over.set()  # an earlier stop is told no more
        self._running, self._kill_at_s, self._over = running, self._clock_s() + grace_s, anyio.Event()
        self._begun.set()

    def over(self) -> None:
        """All are gone."""
        self._over.set()

    async def serve(self) -> None:
        """Tell. Runs until cancelled."""
        while True:
            await self._begun.wait()
            self._begun = anyio.Event()
            await self._tell()

    async def _tell(self) -> None:
        over = self._over
        while True:
            left_s = self._kill_at_s - self._clock_s()
            with anyio.move_on_after(min(EVERY_S, left_s) if left_s > 0 else EVERY_S):
                await over.wait()
            ranks = self._running()
            if over.is_set() or not ranks:
                return
            many = "ranks" if len(ranks) > 1 else "rank"
            run = "still run" if len(ranks) > 1 else "still runs"
            self._say(f"{many} {number_list(ranks)} {run} {_when(self._kill_at_s - self._clock_s())}")


def _when(left_s: float) -> str:
    if left_s > _NOW_S:
        return f"after SIGTERM, SIGKILL in {duration(left_s)}"
    if left_s > -_NOW_S:
        return "after SIGTERM, killed now"
    # Either the kernel does not let go of it, or the keeper that should have killed it is stuck.
    return f"{duration(-left_s)} after it should have been killed"
