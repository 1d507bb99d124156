"""Ranks that finish well while others of this node go on: told, and a failure after a time if a person wants it so.

Nothing is wrong with it in general, so nobody is stopped for it by default; in a training it often is the trace of
a fault that was swallowed, or of ranks that do not make the same number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import anyio

from nvrx_launcher.wording import duration, number_list

NOTE_AFTER_S = 30.0
"""Ranks of one node do not end at the same moment: a checkpoint or a report of one of them takes a while."""


class EarlyExit:
    """`left` and `over` tell it what happens; `serve` is a task of the agent.

    `limit_s`: how long others may go on after the first rank has left, None for ever. Then `fail(round, rank,
    sentence)` is called with one that still runs and what is to be said behind its name.
    """

    def __init__(self, limit_s: float | None, say: Callable[[str], None]) -> None:
        self._limit_s = math.inf if limit_s is None else limit_s
        self._say = say
        self._begun = anyio.Event()
        self._over = anyio.Event()
        self._round = -1
        self._left: list[int] = []
        self._running: Callable[[], Sequence[int]] = tuple
        self._fail: Callable[[int, int, str], None] = _nothing

    def left(
        self,
        number: int,
        rank: int,
        running: Callable[[], Sequence[int]],
        fail: Callable[[int, int, str], None],
    ) -> None:
        """A rank of a round exited with 0 by itself; `running` gives those that have not ended."""
        if number == self._round:
            self._left.append(rank)
            return
        self.over()
        self._round, self._left, self._running, self._fail = number, [rank], running, fail
        self._over = anyio.Event()
        self._begun.set()

    def over(self) -> None:
        """No rank runs any more, or they are being stopped."""
        self._over.set()

    async def serve(self) -> None:
        """Tell. Runs until cancelled."""
        while True:
            await self._begun.wait()
            self._begun = anyio.Event()
            await self._follow(self._over, self._round)

    async def _follow(self, over: anyio.Event, number: int) -> None:
        noted_s = min(NOTE_AFTER_S, self._limit_s)
        with anyio.move_on_after(noted_s):
            await over.wait()
        if over.is_set() or not self._running():
            return
        others = self._running()
        runs = "still run" if len(others) > 1 else "still runs"
        self._say(f"{_ranks(self._left)} finished {duration(noted_s)} ago, {_ranks(others)} {runs} here")
        with anyio.move_on_after(self._limit_s - noted_s):
            await over.wait()
        still = self._running()
        if not over.is_set() and still:
            self._fail(
                number,
                still[0],
                f"still ran {duration(self._limit_s)} after {_ranks(self._left)} had exited with 0",
            )


def _ranks(numbers: Sequence[int]) -> str:
    return f"{'ranks' if len(numbers) > 1 else 'rank'} {number_list(numbers)}"


def _nothing(number: int, rank: int, sentence: str) -> None:
    """Before anything has left there is nothing to fail."""
    del number, rank, sentence
