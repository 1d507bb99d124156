"""What waits for the interpreter."""

from __future__ import annotations

import asyncio
import math

from nvrx_async.rounds.inbox import Inbox


async def test_all_that_is_there_is_taken_at_once():
    inbox = Inbox[int]()
    for number in range(3):
        inbox.put(number)
    assert await inbox.take(math.inf) == [0, 1, 2]


async def test_who_waits_is_woken_by_what_comes():
    inbox = Inbox[int]()
    asyncio.get_running_loop().call_soon(inbox.put, 7)
    async with asyncio.timeout(20):
        assert await inbox.take(math.inf) == [7]


async def test_nothing_comes_in_time():
    inbox = Inbox[int]()
    assert await inbox.take(0.0) == []
    assert await inbox.take(-5.0) == [], "a moment that is over"
    inbox.put(1)
    assert await inbox.take(0.0) == [1]
