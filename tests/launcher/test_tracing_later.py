"""Calls made later: in order, by a thread, never in the way of what is asked for them meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import pytest

from nvrx_launcher import tracing_later
from nvrx_launcher.tracing_later import Later

pytestmark = pytest.mark.anyio
BOUND_S = 30.0


class Heard:
    """Which calls came, and by which threads."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.failures: list[Exception] = []
        self.threads: set[int] = set()
        self.entered = threading.Event()
        self.hold = threading.Event()
        self.hold.set()

    def note(self, what: object) -> None:
        self.entered.set()
        assert self.hold.wait(BOUND_S)
        self.threads.add(threading.get_ident())
        if isinstance(what, Exception):
            raise what
        self.calls.append(what)


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.hold.set()


async def test_calls_come_in_order_and_by_another_thread(heard: Heard) -> None:
    later = Later(heard.failures.append)
    for number in range(1000):
        later.put(heard.note, number)
    assert heard.calls == []
    await later.settle()
    assert heard.calls == list(range(1000))
    assert threading.get_ident() not in heard.threads


async def test_what_fails_is_told_and_what_is_behind_it_comes_all_the_same(heard: Heard) -> None:
    later = Later(heard.failures.append)
    bug = ZeroDivisionError("a bug")
    for what in ("before", bug, "behind"):
        later.put(heard.note, what)
    await later.settle()
    assert (heard.calls, heard.failures) == (["before", "behind"], [bug])


async def test_a_restart_that_begins_is_left_alone(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much happens, nothing is made of it before the pause is over; an end does not wait for it."""
    paused, goes_on = anyio.Event(), anyio.Event()

    async def sleep_until(_moment_s: float) -> None:
        paused.set()
        await goes_on.wait()

    monkeypatch.setattr(anyio, "sleep_until", sleep_until)
    later = Later(heard.failures.append)
    with anyio.fail_after(BOUND_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later.serve)
            for number in range(3):
                later.put(heard.note, number)
                await anyio.wait_all_tasks_blocked()
            assert paused.is_set()
            assert heard.calls == []
            await later.settle()
            assert heard.calls == [0, 1, 2]
            tasks.cancel_scope.cancel()


async def test_after_the_pause_all_is_made_and_the_next_time_again(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_later, "PAUSE_S", 0.0)
    later = Later(heard.failures.append)
    with anyio.fail_after(BOUND_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later.serve)
            for number in range(3):
                heard.entered.clear()
                later.put(heard.note, number)
                await anyio.to_thread.run_sync(heard.entered.wait)
            tasks.cancel_scope.cancel()
    await later.settle()
    assert heard.calls == [0, 1, 2]


async def test_who_settles_though_nothing_was_asked_for_leaves_the_next_to_be_made(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_later, "PAUSE_S", 0.0)
    later = Later(heard.failures.append)
    heard.entered.clear()
    with anyio.fail_after(BOUND_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later.serve)
            await anyio.wait_all_tasks_blocked()
            await later.settle()
            later.put(heard.note, "next")
            await anyio.to_thread.run_sync(heard.entered.wait, BOUND_S)
            tasks.cancel_scope.cancel()
    assert heard.entered.is_set()


async def test_who_stops_waiting_leaves_the_order_as_it_is(heard: Heard) -> None:
    """An end gives up on a thread that takes too long; what is asked for next still comes behind it."""
    heard.hold.clear()
    later = Later(heard.failures.append)
    later.put(heard.note, "slow")
    with anyio.fail_after(BOUND_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later.settle)
            await anyio.to_thread.run_sync(heard.entered.wait)
            tasks.cancel_scope.cancel()
    later.put(heard.note, "next")
    assert heard.calls == []
    heard.hold.set()
    await later.settle()
    assert heard.calls == ["slow", "next"]
    assert heard.failures == []


async def test_where_no_thread_can_be_started_it_is_made_the_next_time(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(heard.failures.append)
    later.put(heard.note, 1)

    async def refuses(*_: object) -> None:
        raise BlockingIOError

    with monkeypatch.context() as patched:
        patched.setattr(tracing_later, "aside", refuses)
        await later.settle()
    assert heard.calls == []
    await later.settle()
    assert heard.calls == [1]
