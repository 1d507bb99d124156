"""What other agents say of their ranks' sections, over real sockets, and agents that say nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import anyio
import pytest

from nvrx_async.hang.monitor import ASK_AHEAD_S
from nvrx_async.hang.patience import OpenSection, to_wire
from nvrx_async.job.records import FIRST_PROBE, Assignment, Seat
from nvrx_async.probe import ProbeServer, QuestionRefusedError
from nvrx_async.rounds.promises import Peer
from nvrx_launcher.neighbours import (
    HOLDS_S,
    SECTIONS,
    SPREAD_S,
    Neighbours,
    ask_ahead_s,
    first_probe,
)

BOUND_S = 20.0


class Other:
    """An agent of another node."""

    def __init__(self, number: int = 3) -> None:
        self.round = number
        self.asked = 0
        self.hold: anyio.Event | None = None
        self.came = anyio.Event()
        self.rank = 7

    async def answer(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        self.came.set()
        self.asked += 1
        if self.hold is not None:
            await self.hold.wait()
        if payload["round"] != self.round:
            raise QuestionRefusedError("no rank of that round is watched here")
        now_s = time.monotonic()
        one = OpenSection(self.rank, "n1", "save", "save@1", now_s - 5, now_s + 60, 65.0)
        return {"sections": [to_wire(one, now_s)]}


@asynccontextmanager
async def neighbours(
    *others: Other | None, within_s: float = BOUND_S, token: str | None = None
) -> AsyncIterator[Neighbours]:
    async with anyio.create_task_group() as tasks:
        peers = []
        for number, other in enumerate(others):
            probe = "127.0.0.1:1"  # nobody listens there
            if other is not None:
                server = ProbeServer({SECTIONS: other.answer}, token="t", warn=lambda _: None)
                probe = await tasks.start(server.serve, "127.0.0.1")
            peers.append(Peer(f"n{number}", f"i{number}", probe))
        asking = Neighbours(
            lambda _: [*peers, Peer("mute", "im", "")], time.monotonic, token or "t", within_s=within_s
        )
        await tasks.start(asking.serve)
        yield asking
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_sections_of_all_that_answer():
    async with neighbours(Other(), None, Other()) as asking:
        found = await asking.sections(3)
    assert [one.name for one in found] == ["save", "save"]
    assert all(50 < one.until_s - time.monotonic() <= 60 for one in found)


@pytest.mark.anyio
async def test_another_round_and_another_token_say_nothing():
    async with neighbours(Other()) as asking:
        assert await asking.sections(4) == ()
    async with neighbours(Other(), token="wrong") as asking:
        assert await asking.sections(3) == ()


@pytest.mark.anyio
async def test_who_is_silent_is_not_waited_for_and_what_it_says_late_counts_the_next_time():
    slow, quick = Other(), Other()
    slow.hold, quick.rank = anyio.Event(), 1
    async with neighbours(slow, quick, within_s=0.3) as asking:
        assert [one.rank for one in await asking.sections(3)] == [1]
        slow.hold.set()
        with anyio.fail_after(BOUND_S):
            while len(found := await asking.sections(3)) < 2:
                await anyio.lowlevel.checkpoint()
    assert {one.rank for one in found} == {1, 7}


@asynccontextmanager
async def first_of_a_large_world(other: Other) -> AsyncIterator[tuple[Neighbours, str]]:
    """Nobody knows the agents of the round, but where the one of rank 0 answers."""
    async with anyio.create_task_group() as tasks:
        server = ProbeServer({SECTIONS: other.answer}, token="t", warn=lambda _: None)
        probe = await tasks.start(server.serve, "127.0.0.1")
        asking = Neighbours(lambda _: (), time.monotonic, "t", within_s=BOUND_S)
        await tasks.start(asking.serve)
        yield asking, probe
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_the_agent_of_rank_0_is_asked_where_a_world_is_not_known():
    other = Other()
    async with first_of_a_large_world(other) as (asking, probe):
        assert await asking.sections(3) == ()
        assert [one.rank for one in await asking.sections(3, probe)] == [7]
        assert [one.rank for one in await asking.sections(3, probe)] == [7]
        assert other.asked == 1, "at the deadline a thousand agents would ask again"
        assert await asking.sections(4, probe) == ()
        assert other.asked == 2


@pytest.mark.anyio
async def test_a_rank_0_that_said_nothing_is_asked_again():
    other = Other(number=4)
    async with first_of_a_large_world(other) as (asking, probe):
        assert await asking.sections(3, probe) == ()
        other.round = 3
        assert [one.rank for one in await asking.sections(3, probe)] == [7]


def seated(group_rank: int, nodes: int) -> Assignment:
    seat = Seat(f"n{group_rank}", "i", "h", group_rank, group_rank * 8, 8)
    return Assignment(3, seat, nodes * 8, nodes, "a", 1, extra={FIRST_PROBE: "h:1"})


def test_who_is_asked_and_when():
    assert first_probe(seated(0, 1000)) == "", "rank 0 is here"
    assert first_probe(seated(999, 1000)) == "h:1"
    assert first_probe(replace(seated(999, 1000), extra={})) == ""
    assert {ask_ahead_s(seated(one, 256)) for one in (0, 255)} == {ASK_AHEAD_S}
    ahead_s = [ask_ahead_s(seated(one, 1000)) for one in range(1000)]
    assert ahead_s[0] == ASK_AHEAD_S
    assert all(later - earlier >= 0.004 for earlier, later in pairwise(ahead_s))
    assert max(ahead_s) < HOLDS_S + SPREAD_S, "what was said then still counts at the deadline"


@pytest.mark.anyio
async def test_nobody_is_asked_without_peers():
    async with anyio.create_task_group() as tasks:
        asking = Neighbours(lambda _: (), time.monotonic, None)
        await tasks.start(asking.serve)
        assert await asking.sections(0) == ()
        tasks.cancel_scope.cancel()
