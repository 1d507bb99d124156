"""Ranks that finish while others go on are told of, and fail the round where a person set a limit."""

from __future__ import annotations

import anyio

from nvrx_launcher import early_exit
from nvrx_launcher.early_exit import EarlyExit


class Heard:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.failed: list[tuple[int, int, str]] = []
        self.something = anyio.Event()

    def say(self, text: str) -> None:
        self.said.append(text)
        self.something.set()

    def fail(self, number: int, rank: int, sentence: str) -> None:
        self.failed.append((number, rank, sentence))
        self.something.set()


async def test_it_is_told_once_and_nobody_is_stopped(monkeypatch) -> None:
    monkeypatch.setattr(early_exit, "NOTE_AFTER_S", 0.05)
    heard = Heard()
    watch = EarlyExit(None, heard.say)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.serve)
        watch.left(0, 1, lambda: [0, 2, 3], heard.fail)
        watch.left(0, 4, lambda: [0, 2, 3], heard.fail)
        with anyio.fail_after(10):
            await heard.something.wait()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert heard.said == ["ranks 1, 4 finished 0.1 s ago, ranks 0, 2-3 still run here"]
    assert heard.failed == []


async def test_a_round_that_ends_in_time_is_no_news(monkeypatch) -> None:
    monkeypatch.setattr(early_exit, "NOTE_AFTER_S", 600.0)
    heard = Heard()
    watch = EarlyExit(1200.0, heard.say)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.serve)
        watch.left(0, 1, lambda: [0], heard.fail)
        await anyio.wait_all_tasks_blocked()
        watch.over()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert heard.said == []
    assert heard.failed == []


async def test_after_the_limit_one_that_still_runs_fails_the_round() -> None:
    heard = Heard()
    watch = EarlyExit(0.05, heard.say)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.serve)
        watch.left(0, 0, lambda: [1], heard.fail)
        watch.left(1, 1, lambda: [0, 2], heard.fail)  # another round: that is what counts now
        with anyio.fail_after(10):
            while not heard.failed:
                await heard.something.wait()
                heard.something = anyio.Event()
        tasks.cancel_scope.cancel()
    assert heard.failed == [(1, 0, "still ran 0.1 s after rank 1 had exited with 0")]
