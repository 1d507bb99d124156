"""What waits to be looked at, taken all at once: a list and an event, since this is waited for at every look."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")

LONGEST_WAIT_S = 3600.0


class Inbox(Generic[T]):
    """One taker. Everything that came together is taken together."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._news = asyncio.Event()

    def put(self, item: T) -> None:
        """Never blocks."""
        self._items.append(item)
        self._news.set()

    async def take(self, within_s: float) -> list[T]:
        """All that is there, at least one; nothing when nothing came within this time, or a long one."""
        if not self._items:
            # A bare timer instead of a cancel scope, which costs several times as much.
            wait_s = min(max(0.0, within_s), LONGEST_WAIT_S)
            timer = asyncio.get_running_loop().call_later(wait_s, self._news.set)
            try:
                await self._news.wait()
            finally:
                timer.cancel()
        items, self._items = self._items, []
        self._news.clear()
        return items
