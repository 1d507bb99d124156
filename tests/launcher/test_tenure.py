"""The lease of one life after another and the questions to peers: a real etcd, real probe ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from support.etcd_server import EtcdProcess, etcd_process

from nvrx_async.etcd import EtcdClient, EtcdConfig
from nvrx_async.job.records import JobSpec
from nvrx_async.probe import ProbeServer, QuestionRefusedError
from nvrx_async.rounds.effects import AskPeers, Extend, Rely
from nvrx_async.rounds.events import Answered, Event, LeaseGranted, LeaseLost, Renewed
from nvrx_async.rounds.fencing import good_until
from nvrx_async.rounds.promises import Answer, Contact, Peer, Question
from nvrx_launcher.tenure import PROMISE, Tenure

SPEC = JobSpec(("train.py",), 1, 2, 0, 6, 1.0, 120.0, 60.0, 2.0)
QUESTION = Question(0, 3, "t", "a", "a-1", before_t=True)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with etcd_process() as server:
        yield server


class Told:
    """Ranks, machines and whoever counts renewals, as one."""

    def __init__(self) -> None:
        self.moved: list[float] = []
        self.extended: list[tuple[int, float]] = []
        self.events: list[Event] = []
        self.store_ended = ""
        self.news = anyio.Event()
        self.acknowledged = anyio.Event()

    def good_until(self, moment_s: float) -> None:
        self.moved.append(moment_s)

    def extend(self, number: int, until_s: float) -> None:
        self.extended.append((number, until_s))

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self.news.set()

    def renewed(self, _sent_at_s: float) -> None:
        self.acknowledged.set()

    async def renewal(self) -> None:
        """The next acknowledged renewal, whatever lease it is of."""
        self.acknowledged = anyio.Event()
        with anyio.fail_after(20):
            await self.acknowledged.wait()

    async def until(self, kind: type[Event]) -> Event:
        with anyio.fail_after(20):
            while not (found := [one for one in self.events if isinstance(one, kind)]):
                self.news = anyio.Event()
                await self.news.wait()
        return found[-1]


class Answers:
    """In the place of the machine that answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Question, str, Contact]] = []

    def answer(self, question: Question, asked: str, now_s: float, contact: Contact) -> Answer:
        del now_s
        self.asked.append((question, asked, contact))
        failing = contact.failing_since_s is not None
        return Answer(yes=failing, reason="no answer either" if failing else "reaches etcd itself")

    def others(self, number: int) -> tuple[Peer, ...]:
        return (Peer("b", "b-1", ""),) if number == 3 else ()


@asynccontextmanager
async def tenure(etcd: EtcdProcess, *, lives: bool = True) -> AsyncIterator[tuple[Tenure, Told, Answers]]:
    """A tenure whose first session was entered; `lives`: machines of a life listen."""
    told, answers = Told(), Answers()
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client:
        made = Tenure(
            client, SPEC, told, token=None, renewed=told.renewed, store_ended=lambda: told.store_ended
        )
        if lives:
            made.serve_life(told.tell, answers)  # type: ignore[arg-type]
        async with made.session:
            yield made, told, answers


@asynccontextmanager
async def peer(answer: Mapping[str, Any] | None) -> AsyncIterator[Peer]:
    """A peer that answers so; None: never."""

    async def say(_payload: Mapping[str, Any]) -> Mapping[str, Any]:
        if answer is None:
            await anyio.sleep_forever()
        assert answer is not None
        return answer

    async with anyio.create_task_group() as tasks:
        server = ProbeServer({PROMISE: say}, token=None, warn=lambda _: None)
        yield Peer("b", "b-1", await tasks.start(server.serve, "127.0.0.1"))
        tasks.cancel_scope.cancel()


# T -----------------------------------------------------------------------------------------------------------


async def test_a_lease_moves_t_only_once_the_registration_stands_on_it(etcd: EtcdProcess) -> None:
    async with tenure(etcd) as (made, told, _):
        assert not told.moved, "its first acknowledgement is known, and moves nothing yet"
        made.move_t(Rely(made.session.lease_id + 1))
        assert not told.moved, "another lease"
        made.move_t(Rely(made.session.lease_id))
        until_s = good_until(made.session.renewed_at_s, SPEC.lease_ttl_s, SPEC.kill_time_s)
        assert told.moved == [until_s]
        assert told.events == [Renewed(made.session.renewed_at_s, until_s)]
        made.session.renew_now()
        told.events.clear()
        await told.until(Renewed)
        assert told.moved[-1] > until_s


async def test_promises_go_to_the_ranks_of_their_round(etcd: EtcdProcess) -> None:
    async with tenure(etcd) as (made, told, _):
        made.move_t(Extend(3, 123.0))
        assert (told.extended, told.moved) == ([(3, 123.0)], [])


async def test_a_lost_lease_is_followed_by_a_new_one_that_moves_nothing_by_itself(etcd: EtcdProcess) -> None:
    async with tenure(etcd) as (made, told, answers), anyio.create_task_group() as tasks:
        session = made.session
        first = session.lease_id
        made.move_t(Rely(first))
        tasks.start_soon(made.serve)
        await made._client.revoke(first)
        session.renew_now()
        await told.until(LeaseLost)
        granted = await told.until(LeaseGranted)
        assert isinstance(granted, LeaseGranted)
        assert granted.lease not in (0, first)
        by_the_first = len(told.moved)
        assert told.moved[-1] == good_until(session.renewed_at_s, SPEC.lease_ttl_s, SPEC.kill_time_s)
        assert not (await made.answer(QUESTION.to_wire(Peer("a", "a-1", ""))))["yes"], "etcd gave it a lease"
        await told.renewal()  # the question hurried one
        assert len(told.moved) == by_the_first
        made.move_t(Rely(granted.lease))
        assert len(told.moved) == by_the_first + 1
        assert not (await made.answer(QUESTION.to_wire(Peer("a", "a-1", ""))))["yes"]
        assert [asked for _, asked, _ in answers.asked] == ["a-1", "a-1"]
        made.end()
        tasks.cancel_scope.cancel()


# Questions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "objection"),
    [
        ({"yes": True}, ""),
        ({"yes": False, "reason": "reaches etcd itself"}, "b reaches etcd itself"),
        ({}, "b says no"),
        ({"yes": "true"}, "b says no"),
        (None, "b "),
    ],
)
async def test_only_a_yes_of_everybody_is_one(
    etcd: EtcdProcess, answer: Mapping[str, Any] | None, objection: str
) -> None:
    async with tenure(etcd) as (made, _, _), peer({"yes": True}) as first, peer(answer) as second:
        said = await made.ask(AskPeers(QUESTION, (Peer("z", "z-1", first.probe), second), 5.0))
        assert said.sent_at_s == 5.0
        assert said.objection.startswith(objection) if objection else said.objection == ""


async def test_whoever_cannot_be_asked_objects_and_a_single_agent_asks_nobody(etcd: EtcdProcess) -> None:
    async with tenure(etcd) as (made, told, _):
        said = await made.ask(AskPeers(QUESTION, (Peer("b", "b-1", ""),), 5.0))
        assert said == Answered(5.0, "b answers no questions")
        gone = await made.ask(AskPeers(QUESTION, (Peer("b", "b-1", "127.0.0.1:1"),), 5.0))
        assert gone.objection.startswith("b does not answer: ")
        assert await made.ask(AskPeers(QUESTION, (), 5.0)) == Answered(5.0, "")
        told.store_ended = "the etcd that this agent started has ended"
        ended = await made.ask(AskPeers(QUESTION, (), 5.0))
        assert ended.objection == told.store_ended, "it will not come back: no promise is worth anything"


@pytest.mark.parametrize("payload", [{}, {**QUESTION.to_wire(Peer("a", "a-1", "")), "round": "3"}])
async def test_a_malformed_question_is_refused(etcd: EtcdProcess, payload: Mapping[str, Any]) -> None:
    async with tenure(etcd) as (made, _, answers):
        with pytest.raises(QuestionRefusedError, match="a question for a promise without"):
            await made.answer(payload)
        assert not answers.asked


async def test_before_its_first_life_an_agent_promises_nothing(etcd: EtcdProcess) -> None:
    async with tenure(etcd, lives=False) as (made, _, _):
        with pytest.raises(QuestionRefusedError, match="not in the job yet"):
            await made.answer(QUESTION.to_wire(Peer("a", "a-1", "")))
        assert made.others(3) == ()
