"""Tells how long ranks that are being stopped still have, every few seconds, until they are gone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import anyio

from nvrx_launcher.clock import boottime_s
from nvrx_launcher.wording import duration, number_list

EVERY_S = 5.0


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
        while (left_s := self._kill_at_s - self._clock_s()) > 0:
            with anyio.move_on_after(min(EVERY_S, left_s)):
                await over.wait()
            ranks = self._running()
            if over.is_set() or not ranks:
                return
            left_s = self._kill_at_s - self._clock_s()
            many = "ranks" if len(ranks) > 1 else "rank"
            run = "still run" if len(ranks) > 1 else "still runs"
            then = f"SIGKILL in {duration(left_s)}" if left_s > 0.1 else "killed now"  # noqa: PLR2004 - as good as now
            self._say(f"{many} {number_list(ranks)} {run} after SIGTERM, {then}")
