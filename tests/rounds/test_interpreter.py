"""The one interpreter of effects, between machines and a world of the test's."""

from __future__ import annotations

import math
from collections import deque

import anyio
import pytest
from rounds_kit import KEYS, UTC, Keys, node, process, seat

from nvrx_async.etcd.errors import NoSpaceError, OutcomeUnknownError, UnavailableError
from nvrx_async.etcd.types import CreatedAt, Put, Scope, Txn
from nvrx_async.job.records import Assignment
from nvrx_async.rounds.committer import Committer
from nvrx_async.rounds.effects import (
    Campaign,
    Commit,
    Decision,
    Finish,
    Notify,
    ProveDead,
    ReservePort,
    Revoke,
    StartRanks,
    StopRanks,
    Waiting,
)
from nvrx_async.rounds.events import (
    Answered,
    Changed,
    Committed,
    Deposed,
    Elected,
    Listed,
    Now,
    PortReserved,
    Proof,
    Proven,
    Refused,
    Tick,
)
from nvrx_async.rounds.interpreter import Interpreter
from nvrx_async.rounds.mirror import Mirror

SCOPE = Scope(KEYS.base, prefix=True)
PUT = Txn((), (Put(KEYS.round, b"{}"),))
NEVER = Txn((CreatedAt(KEYS.round, 999),), (Put(KEYS.outcome, b"{}"),))


class Script:
    """A machine that says what the test wrote down: one decision for each time it is asked, then nothing."""

    def __init__(self, *decisions, until=lambda seen: False):
        self.decisions = deque(decisions)
        self.seen = []
        self.until = until
        self.scope = SCOPE

    def scopes(self):
        return frozenset({self.scope})

    def observe(self, event, now):
        self.seen.append(event)

    def decide(self, now):
        if self.until(self.seen):
            return Decision((Finish(0, "seen"),), None, "seen")
        return self.decisions.popleft() if self.decisions else Decision((), None, "nothing to do")

    def of(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


def saying(*effects, wake_at_s=None):
    return Decision(effects, wake_at_s, "because")


class FakeStore:
    """Keys with hand-made trouble: exceptions are raised in the place of the next answers."""

    def __init__(self):
        self.keys = Keys()
        self.calls = []
        self.commit_trouble = deque()
        self.relist_trouble = deque()
        self.after_commit = False
        self.scopes = frozenset()
        self.leads = True
        self.gone = anyio.Event()
        self.hung = anyio.Event()
        self._send, self._receive = anyio.create_memory_object_stream(math.inf)

    def follow(self, scopes):
        if scopes != self.scopes:
            self.scopes = scopes
            for scope in scopes:
                self._send.send_nowait(self.keys.listing(scope))

    async def changes(self):
        async for change in self._receive:
            yield change

    def change(self, change):
        self._send.send_nowait(change)

    async def relist(self):
        self.calls.append("relist")
        if self.relist_trouble:
            raise self.relist_trouble.popleft()
        return tuple(self.keys.listing(scope) for scope in self.scopes)

    async def commit(self, txn):
        self.calls.append("commit")
        if self.commit_trouble:
            trouble = self.commit_trouble.popleft()
            if trouble == "hang":
                self.hung.set()
                await anyio.sleep_forever()
            if self.after_commit:
                self.keys.commit(txn)
            raise trouble
        return self.keys.commit(txn)

    async def revoke(self, lease):
        self.calls.append(("revoke", lease))
        if self.commit_trouble:
            raise self.commit_trouble.popleft()

    async def lead(self, elections, key, create_revision):
        self.calls.append(("lead", elections, key, create_revision))
        return self.leads

    async def deposed(self, key, create_revision):
        await self.gone.wait()

    def close(self):
        self._send.close()
        self._receive.close()


class FakeRanks:
    def __init__(self):
        self.calls = []

    async def start(self, assignment, generation):
        self.calls.append(("start", assignment.round, generation))

    def stop(self, number, *, grace):
        self.calls.append(("stop", number, grace))

    async def reserve_port(self, number):
        return PortReserved(number, 29000 + number)

    async def prove(self, which):
        return Proven(which.incarnation, Proof.DEAD, "no such pid")


class FakePeers:
    def __init__(self):
        self.moved = []

    def move_t(self, by):
        self.moved.append(by)

    async def ask(self, asking):
        return Answered(asking.sent_at_s)


class Stage:
    def __init__(self, *machines):
        self.store, self.ranks = FakeStore(), FakeRanks()
        self.notices, self.sentences = [], []
        self.mirror = Mirror()
        self.now_s = anyio.current_time
        self.interpreter = Interpreter(
            machines,
            self.mirror,
            self.store,
            self.ranks,
            lambda: Now(anyio.current_time(), UTC),
            self.notices.append,
            self.sentences.append,
            peers=FakePeers(),
        )

    async def run(self):
        try:
            with anyio.fail_after(10):
                return await self.interpreter.run()
        finally:
            self.store.close()


def after(kind):
    return lambda seen: any(isinstance(event, kind) for event in seen)


async def test_scopes_are_followed_and_news_reach_mirror_and_machines():
    machine = Script(until=after(Changed))
    stage = Stage(machine)
    stage.store.keys.commit(PUT)
    stage.store.change(stage.store.keys.held[KEYS.round])
    assert await stage.run() == Finish(0, "seen")
    assert machine.of(Changed)[0].change.key == KEYS.round
    assert stage.mirror.get(KEYS.round).value == b"{}"


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (NoSpaceError("etcd is full", hint="make room"), "etcd is full (make room); 'tag' is tried again"),
        (UnavailableError("no etcd endpoint answered"), "no etcd endpoint answered; 'tag' is tried again"),
        (OutcomeUnknownError("lost"), None),
    ],
)
async def test_people_are_told_why_etcd_takes_no_writes(trouble, told):
    stage = Stage(Script(saying(Commit("tag", (PUT,))), until=after(Refused)))
    stage.store.commit_trouble.append(trouble)
    await stage.run()
    assert stage.notices == ([Waiting(told)] if told else [])


async def test_news_after_the_end_of_a_life_find_nobody_and_do_no_harm():
    stage = Stage(Script(until=lambda seen: True))
    assert await stage.run() == Finish(0, "seen")
    stage.interpreter.tell(Tick())  # a renewal that was answered, a keeper that died between two lives


async def test_a_commit_is_answered_to_its_machine_only_and_known_to_the_mirror_before():
    known = []
    first = Script(saying(Commit("tag", (PUT, PUT))), until=after(Committed))
    other = Script()
    stage = Stage(first, other)
    first.observe = lambda event, now: (first.seen.append(event), known.append(stage.mirror.get(KEYS.round)))
    await stage.run()
    (committed,) = first.of(Committed)
    assert committed.tag == "tag"
    assert [txn for txn, _ in committed.txns] == [PUT, PUT]
    assert committed.txns[0][1] < committed.txns[1][1]
    assert known[first.seen.index(committed)] is not None
    assert not other.of(Committed)


async def test_a_refused_commit_is_told_after_a_new_look_at_everything():
    machine = Script(saying(Commit("tag", (PUT, NEVER, PUT))), until=after(Refused))
    stage = Stage(machine)
    await stage.run()
    assert stage.store.calls == ["commit", "commit", "relist"], "the third is not tried"
    refused = machine.seen.index(Refused("tag"))
    listed = machine.seen.index(machine.of(Listed)[-1])
    assert listed < refused
    assert stage.mirror.get(KEYS.round) is not None, "what the first one wrote"


@pytest.mark.parametrize("took_effect", [True, False])
async def test_an_unknown_outcome_is_looked_up_and_counts_as_refused(took_effect):
    machine = Script(saying(Commit("tag", (PUT,))), until=after(Refused))
    stage = Stage(machine)
    stage.store.after_commit = took_effect
    stage.store.commit_trouble.append(OutcomeUnknownError("the answer was lost"))
    await stage.run()
    assert stage.store.calls == ["commit", "relist"]
    assert (stage.mirror.get(KEYS.round) is not None) is took_effect


async def test_a_look_that_fails_is_tried_again_until_etcd_answers():
    machine = Script(saying(Commit("tag", (PUT,))), until=after(Refused))
    stage = Stage(machine)
    stage.store.commit_trouble.append(UnavailableError("nobody answers"))
    stage.store.relist_trouble.extend([UnavailableError("nobody answers")] * 3)
    await stage.run()
    assert stage.store.calls == ["commit", *["relist"] * 4]


async def test_a_tick_comes_when_the_moment_to_wake_does():
    machine = Script(until=lambda seen: seen.count(Tick()) == 2)  # the first comes at once
    stage = Stage(machine)
    wake_at_s = anyio.current_time() + 0.2
    machine.decisions.extend([saying(wake_at_s=wake_at_s)] * 3)
    await stage.run()
    assert anyio.current_time() >= wake_at_s


async def test_the_earliest_moment_of_all_machines_counts():
    late, early = Script(), Script(until=lambda seen: False)
    stage = Stage(late, early)
    soon_s = anyio.current_time() + 0.1
    late.decisions.extend([saying(wake_at_s=soon_s + 1000)] * 3)
    early.decisions.extend([saying(wake_at_s=soon_s)] * 3)
    late.until = lambda seen: seen.count(Tick()) == 2
    await stage.run()
    assert soon_s <= anyio.current_time() < soon_s + 900


async def test_no_event_is_lost_or_disordered_however_many_come_at_once():
    count = 500
    machine = Script(until=lambda seen: sum(isinstance(event, PortReserved) for event in seen) == count)
    stage = Stage(machine)
    machine.decide = _always_awake(machine)

    async def burst():
        for number in range(count):
            stage.interpreter.tell(PortReserved(number, number))
            if number % 7 == 0:
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(burst)
        await stage.run()
    assert [event.round for event in machine.of(PortReserved)] == list(range(count))


def _always_awake(machine):
    """Its moment to wake is now, so that timeouts and events race."""

    def decide(now):
        over = machine.until(machine.seen)
        return Decision((Finish(0, "all"),) if over else (), now.s, "awake")

    return decide


async def test_every_effect_of_a_decision_is_executed():
    assignment = Assignment(3, seat("a", 0), 2, 1, "10.0.0.a", 29500)
    effects = (
        StopRanks(2, False, "over"),
        StartRanks(assignment, 7),
        ReservePort(4),
        ProveDead(node("b", process=process())),
        Revoke(0x99),
        Notify(Waiting("for something")),
        Commit("tag", (PUT,)),
        Campaign(KEYS.election(1), 5),
    )
    wanted = {PortReserved(4, 29004), Proven("b-1", Proof.DEAD, "no such pid"), Elected(KEYS.election(1), 5)}

    def done(seen):
        told = {event for event in seen if isinstance(event, (PortReserved, Proven, Elected))}
        return told == wanted and any(isinstance(event, Committed) for event in seen)

    stage = Stage(Script(saying(*effects), until=done))
    await stage.run()
    assert stage.ranks.calls == [("stop", 2, False), ("start", 3, 7)]
    assert ("revoke", 0x99) in stage.store.calls
    assert ("lead", KEYS.elections, KEYS.election(1), 5) in stage.store.calls
    assert stage.notices == [Waiting("for something")]
    assert (
        "because [StopRanks, StartRanks, ReservePort, ProveDead, Revoke, Commit, Campaign]"
        in stage.sentences[0]
    )


async def test_a_candidate_is_told_of_its_end_with_or_without_having_led():
    machine = Script(saying(Campaign(KEYS.election(1), 5)), until=after(Deposed))
    stage = Stage(machine)
    stage.store.gone.set()
    await stage.run()
    assert [type(event) for event in machine.seen if isinstance(event, (Elected, Deposed))] == [
        Elected,
        Deposed,
    ]
    never = Script(saying(Campaign(KEYS.election(1), 5)), until=after(Deposed))
    stage = Stage(never)
    stage.store.leads = False
    await stage.run()
    assert not never.of(Elected)


async def test_the_end_cancels_what_is_under_way():
    machine = Script(saying(Commit("tag", (PUT,)), Campaign(KEYS.election(1), 1)))
    stage = Stage(machine)
    stage.store.commit_trouble.append("hang")

    async def end_it():
        await stage.store.hung.wait()
        machine.until = lambda seen: True
        stage.interpreter.tell(Tick())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_it)
        assert (await stage.run()).reason == "seen"
    assert not machine.of(Committed)


async def test_it_can_be_cancelled():
    machine = Script(saying(Commit("tag", (PUT,))))
    stage = Stage(machine)
    stage.store.commit_trouble.append("hang")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.run)
        with anyio.fail_after(10):
            await stage.store.hung.wait()
        tasks.cancel_scope.cancel()


async def test_a_reason_is_told_when_it_changes_and_with_every_effect():
    machine = Script(
        Decision((), None, "one"),
        Decision((), None, "one"),
        Decision((Notify(Waiting("x")),), None, "one"),
        Decision((), None, "two"),
        until=lambda seen: seen.count(Tick()) >= 5,
    )
    stage = Stage(machine)
    for _ in range(5):
        stage.interpreter.tell(Tick())
    machine.decide, decisions = lambda now: next(decisions), iter([*machine.decisions, _END])
    machine.decisions.clear()

    async def keep_asking():
        for _ in range(5):
            stage.interpreter.tell(Tick())
            await anyio.wait_all_tasks_blocked()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_asking)
        await stage.run()
        tasks.cancel_scope.cancel()
    assert stage.sentences == ["script: one", "script: one", "script: two", "script: end [Finish]"]


_END = Decision((Finish(0, "end"),), None, "end")


# The committer alone ---------------------------------------------------------------------------------------


async def test_refusals_of_one_tag_wait_longer_and_longer_until_one_is_taken(monkeypatch):
    pauses = []

    async def note(pause_s):
        pauses.append(pause_s)

    monkeypatch.setattr("nvrx_async.rounds.committer.anyio.sleep", note)
    store = FakeStore()
    committer = Committer(store, print)
    for _ in range(9):
        taken, listings = await committer.commit("tag", [NEVER])
        assert (taken, len(listings)) == ((), 0)
    assert pauses == [0.0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    await committer.commit("other", [NEVER])
    assert pauses[-1] == 0.0, "each tag for itself"
    taken, _ = await committer.commit("tag", [PUT])
    assert len(taken) == 1
    await committer.commit("tag", [NEVER])
    assert pauses[-1] == 0.0
    store.close()


async def test_what_was_taken_before_a_refusal_is_told():
    store = FakeStore()
    store.scopes = frozenset({SCOPE})
    taken, listings = await Committer(store, print).commit("tag", [PUT, NEVER, PUT])
    assert [txn for txn, _ in taken] == [PUT]
    assert [listing.scope for listing in listings] == [SCOPE]
    store.close()
