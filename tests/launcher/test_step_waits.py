"""Waiting for a step of this node's ranks: a word on their pages, a message of theirs, and nobody looks meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import anyio
import pytest

from nvrx_async.probe import QuestionRefusedError
from nvrx_async.ranklink.messages import Message
from nvrx_async.ranklink.page import H_TELL, Page
from nvrx_async.ranklink.rank import Rank
from nvrx_launcher import step_waits
from nvrx_launcher.step_waits import StepWaits


class Said:
    """The socket of a rank, which its agent hears at once."""

    is_open = True

    def __init__(self, hear: Callable[[Message], None]) -> None:
        self.send = hear

    def close(self) -> None:
        """Nothing is held."""


class Node:
    """Two ranks of round 4."""

    def __init__(self, closing: ExitStack) -> None:
        self.pages = [Page.create(4, rank) for rank in range(2)]
        self.ranks = []
        self.over = False
        self.looked = 0
        self.heard: list[Message] = []
        for number, page in enumerate(self.pages):
            closing.callback(page.close)
            mine = Page.open(page.path)
            self.ranks.append(Rank(mine, Said(self.hear), rank=number, world_size=2, number=4))
            closing.callback(self.ranks[-1].close)
        self.waits = StepWaits(self.pages_of)

    def pages_of(self, number: int) -> list[Page] | None:
        self.looked += 1
        return self.pages if number == 4 and not self.over else None

    def hear(self, message: Message) -> None:
        self.heard.append(message)
        self.waits.news()

    def step(self, step: int) -> None:
        for rank in self.ranks:
            rank.progress(step=step)


@pytest.fixture
def node() -> Iterator[Node]:
    with ExitStack() as closing:
        yield Node(closing)


def question(step: int, within_s: float = 20.0, number: int = 4) -> dict[str, float]:
    return {"round": number, "step": step, "within_s": within_s}


async def test_it_is_answered_when_the_last_rank_has_come_and_looked_at_only_then(node):
    node.step(3)
    answers = []

    async def wait(step: int) -> None:
        answers.append((step, await node.waits.answer(question(step))))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 7)
            tasks.start_soon(wait, 5)
            await until(lambda: [page.words[H_TELL] for page in node.pages] == [6, 6])
            looked = node.looked
            node.step(4)
            node.ranks[0].progress(step=9)
            await until(lambda: node.pages[0].words[H_TELL] == 0)
            assert answers == []
            node.ranks[1].progress(step=5)
            await until(lambda: answers == [(5, {"reached": True})])
            await until(lambda: node.pages[1].words[H_TELL] == 8)
            node.ranks[1].progress(step=8)
    assert answers == [(5, {"reached": True}), (7, {"reached": True})]
    assert len(node.heard) == 3, "each rank speaks once for each step that was wanted of it"
    assert node.looked - looked < 20
    assert [page.words[H_TELL] for page in node.pages] == [0, 0]


async def test_a_step_that_is_over_is_answered_at_once_and_one_that_does_not_come_in_time(node):
    node.step(8)
    assert await node.waits.answer(question(8)) == {"reached": True}
    assert await node.waits.answer(question(9, within_s=0.05)) == {"reached": False}
    assert [page.words[H_TELL] for page in node.pages] == [0, 0]


async def test_should_stop_counts_as_a_step_where_no_other_is_reported(node):
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.waits.answer, question(2))
            await until(lambda: node.pages[1].words[H_TELL] == 3)
            for rank in node.ranks:
                rank.should_stop(2)


async def test_the_end_of_the_round_ends_the_wait(node):
    with anyio.fail_after(20), pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.waits.answer, question(5))
            await until(lambda: node.pages[1].words[H_TELL] == 6)
            node.over = True
            node.waits.news()
    assert caught.group_contains(QuestionRefusedError, match="no rank of that round")


async def test_a_step_is_told_again_when_the_count_began_anew_and_should_stop_does_not_stand_for_it(node):
    with anyio.fail_after(15):  # less than what asking again would take
        for before in (7, 1):
            node.step(before)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.waits.answer, question(5))
            await until(lambda: node.pages[1].words[H_TELL] == 6)
            node.step(5)
        node.step(2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.waits.answer, question(5))
            await until(lambda: node.pages[1].words[H_TELL] == 6)
            node.step(4)
            for rank in node.ranks:
                rank.should_stop(5)  # asks of the step to come
            await anyio.sleep(2 * step_waits.SEEN_AFTER_S)  # the agent looks, and finds no such step
            node.step(5)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"round": 4, "step": "7", "within_s": 1},
        question(3, number=5),
        question(2**63 - 1),
        question(2**80),
        question(-3),
    ],
)
async def test_what_makes_no_sense_is_refused(node, payload):
    with pytest.raises(QuestionRefusedError):
        await node.waits.answer(payload)


async def test_askers_have_a_bound(node, monkeypatch):
    monkeypatch.setattr(step_waits, "MOST", 2)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(node.waits.answer, question(5))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(QuestionRefusedError, match="2 others wait"):
            await node.waits.answer(question(5))
        tasks.cancel_scope.cancel()
    assert await node.waits.answer(question(9, within_s=0.01)) == {"reached": False}


async def until(reached) -> None:
    """Let the others run until it is so; the bound is the test's."""
    end_s = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end_s
        await anyio.sleep(0.001)
