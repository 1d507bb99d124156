"""How long ranks that are being stopped still have is told by a timer, until they are gone."""

from __future__ import annotations

import re

import anyio

from nvrx_launcher import countdown
from nvrx_launcher.countdown import Countdown


async def test_it_counts_down_to_the_kill_and_says_no_more(monkeypatch) -> None:
    monkeypatch.setattr(countdown, "EVERY_S", 0.05)
    said: list[str] = []
    told = anyio.Event()

    def say(text: str) -> None:
        said.append(text)
        if text.endswith("killed now"):
            told.set()

    count = Countdown(say)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count.serve)
        count.begin(lambda: [4, 5, 7], 0.25)
        with anyio.fail_after(10):
            await told.wait()
        tasks.cancel_scope.cancel()
    assert 2 <= len(said) <= 6
    assert all(text.startswith("ranks 4-5, 7 still run after SIGTERM, ") for text in said)


async def test_who_outlives_its_kill_is_told_so_until_it_is_gone(monkeypatch) -> None:
    monkeypatch.setattr(countdown, "EVERY_S", 0.15)
    said: list[str] = []
    told = anyio.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            told.set()

    count = Countdown(say)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count.serve)
        count.begin(lambda: [3], 600)
        count.begin(lambda: [3], 0)  # killed after all
        with anyio.fail_after(10):
            await told.wait()
        count.over()
        await anyio.wait_all_tasks_blocked()
        assert len(said) == 2
        tasks.cancel_scope.cancel()
    assert all(
        re.fullmatch(r"rank 3 still runs 0\.\d s after it should have been killed", text) for text in said
    )


async def test_it_ends_with_the_ranks(monkeypatch) -> None:
    monkeypatch.setattr(countdown, "EVERY_S", 0.01)
    said: list[str] = []
    heard = anyio.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    count = Countdown(say)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count.serve)
        count.begin(lambda: [0], 600)
        with anyio.fail_after(10):
            await heard.wait()
        count.over()
        before = len(said)
        await anyio.wait_all_tasks_blocked()
        assert len(said) == before
        count.begin(list, 600)  # nobody runs any more: nothing to tell
        count.over()
        await anyio.wait_all_tasks_blocked()
        assert len(said) == before
        tasks.cancel_scope.cancel()
