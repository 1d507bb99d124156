"""Signals and the time limit: who is told, and what becomes of a second signal."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterable
from unittest.mock import MagicMock

import anyio
import pytest

from nvrx_async.job.records import Ending
from nvrx_async.rounds.events import Event, LeaveRequested
from nvrx_launcher.current_life import CurrentLife
from nvrx_launcher.stop_requests import StopRequests


class Bench:
    """Requests with a life, or none, and ranks that note what they get."""

    def __init__(self, *, lives: bool = True, limit_s: float | None = None) -> None:
        self.told: list[Event] = []
        self.said: list[str] = []
        self.ranks = MagicMock()
        life = CurrentLife()
        if lives:
            life.begin(MagicMock(tell=self.told.append), MagicMock())
        workers = MagicMock(
            signals=(signal.SIGUSR1,), end_unix_s=limit_s, limit_margin_s=60.0, stop_timeout_s=15.0, pty=False
        )
        workers.grace_s.return_value = 15.0
        self.stops = StopRequests(workers, life, self.ranks, say=self.said.append, warn=self.said.append)

    async def serve(self, *numbers: signal.Signals) -> bool:
        """Whether the agent was to end at once."""
        with anyio.CancelScope() as everything:
            await self.stops.serve_signals(_each(numbers), everything)
        return everything.cancel_called


async def _each(numbers: Iterable[signal.Signals]) -> AsyncIterator[signal.Signals]:
    for number in numbers:
        yield number


async def test_the_first_signal_is_told_to_the_life_of_now_and_repeated_to_the_next() -> None:
    b = Bench()
    assert not await b.serve(signal.SIGTERM)
    (leave,) = b.told
    assert isinstance(leave, LeaveRequested)
    assert (leave, leave.signal, leave.ending) == (b.stops.leave, signal.SIGTERM, Ending.PREEMPTED)
    assert b.said == ["SIGTERM: stopping; ranks have 15 s (again to kill them now)"]
    repeated: list[Event] = []
    b.stops.repeat(repeated.append)
    assert repeated == [leave]


async def test_a_second_signal_kills_the_ranks_and_ends_the_agent() -> None:
    b = Bench()
    assert await b.serve(signal.SIGINT, signal.SIGTERM)
    b.ranks.kill.assert_called_once_with()
    assert b.stops.leave is not None
    assert b.stops.leave.signal == signal.SIGINT


async def test_without_a_life_there_is_nothing_to_wait_for() -> None:
    b = Bench(lives=False)
    assert await b.serve(signal.SIGINT)
    assert b.said == ["SIGINT: stopping before this node was in the job"]


async def test_signals_for_the_ranks_change_nothing_here() -> None:
    b = Bench()
    assert not await b.serve(signal.SIGUSR1, signal.SIGWINCH)
    b.ranks.signal.assert_called_once_with(signal.SIGUSR1)
    b.ranks.resize.assert_called_once_with(None)
    assert (b.told, b.stops.leave) == ([], None)


async def test_who_embeds_the_agent_keeps_the_signals() -> None:
    b = Bench()
    with anyio.CancelScope() as everything:
        await b.stops.serve_signals(None, everything)
    assert "signals are not handled here" in b.said[0]


@pytest.mark.parametrize("limit_s", [None, 1.0])
async def test_no_limit_and_one_that_is_past_stop_nothing(limit_s: float | None) -> None:
    b = Bench(limit_s=limit_s)
    await b.stops.serve_limit()
    assert b.told == []
