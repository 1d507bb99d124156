"""A callback that remembers its calls and lets a test wait for them."""

from __future__ import annotations

import asyncio


class Recorder:
    """Call it with values; `await reached(n)` until there are n."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._news = asyncio.Event()

    def __call__(self, value: float) -> None:
        self.values.append(value)
        self._news.set()

    async def reached(self, count: int, *, within_s: float = 20) -> None:
        async with asyncio.timeout(within_s):
            while len(self.values) < count:
                self._news.clear()
                await self._news.wait()

    async def one_more(self) -> None:
        await self.reached(len(self.values) + 1)
