"""The one thread that writes to the console."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import pytest

from nvrx_launcher import screen as module
from nvrx_launcher.screen import Screen, call_in


class Stuck:
    """A console that takes nothing until it is told to."""

    def __init__(self):
        self.reached, self.free = threading.Event(), threading.Event()

    def __call__(self):
        self.reached.set()
        assert self.free.wait(20)


@pytest.fixture
def screen():
    """Opened and closed beside the loop, as the agent does it."""
    with Screen() as made:
        yield made


def test_jobs_are_done_in_order_by_one_other_thread_and_all_before_the_end():
    done, threads = [], set()
    with Screen() as screen:
        for number in range(1000):
            screen.do(lambda number=number: (done.append(number), threads.add(threading.get_ident())))
    assert done == list(range(1000))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_stuck_console_delays_nobody_and_drain_is_bounded(screen):
    stuck, done = Stuck(), []
    screen.do(stuck)
    for number in range(100):
        screen.do(lambda number=number: done.append(number))
    began_s = time.monotonic()
    await screen.drain(0.05)
    assert time.monotonic() - began_s < 10
    assert done == []
    stuck.free.set()
    with anyio.fail_after(20):
        await screen.drain(20)
    assert done == list(range(100))


def test_a_console_that_stays_stuck_does_not_keep_the_agent(monkeypatch):
    monkeypatch.setattr(module, "CLOSE_LIMIT_S", 0.05)
    stuck = Stuck()
    with Screen() as screen:
        screen.do(stuck)
        assert stuck.reached.wait(20)
    assert screen._thread.is_alive()
    assert screen._thread.daemon, "the process can end"
    stuck.free.set()
    screen._thread.join(20)
    assert not screen._thread.is_alive()


def test_a_slow_console_is_waited_for_as_long_as_it_takes_anything(monkeypatch):
    monkeypatch.setattr(module, "CLOSE_LIMIT_S", 0.1)
    pieces, more = [], threading.Event()

    def slow():
        while len(pieces) < 8:
            more.wait(0.05)
            pieces.append(1)

    with Screen(lambda: len(pieces)) as screen:
        screen.do(slow)
    assert len(pieces) == 8
    assert not screen._thread.is_alive()


async def test_drain_waits_for_what_was_given_until_now(screen):
    done = []
    screen.do(lambda: done.append("before"))
    await screen.drain(20)
    assert done == ["before"]


def test_a_loop_that_has_ended_is_called_in_vain():
    loop = asyncio.new_event_loop()
    loop.close()
    call_in(loop, lambda: None)
