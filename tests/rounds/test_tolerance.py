"""When an agent asks for promises, what their answers move, and what it answers others: tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rounds_kit import KEYS, SPEC, UTC, Keys, node, opened, seat

from nvrx_async.job.records import PROBES, FaultKind, Interrupt, Phase, Spare, Struck, WorldShard
from nvrx_async.rounds.effects import AskPeers, Extend, Notify
from nvrx_async.rounds.events import Answered, Listed, Now, Renewed
from nvrx_async.rounds.fencing import MARGIN_S, SETTLE_S, good_until
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.promises import MOST_ASKED, Book, Contact, Peer, Question, shares_outage
from nvrx_async.rounds.registration import Registration
from nvrx_async.rounds.tolerance import ASK_AFTER_TTLS, ASK_AGAIN_S, ASK_AHEAD_S, ASK_EVERY_S, Tolerance

SENT_S = 100.0
T_S = good_until(SENT_S, SPEC.lease_ttl_s, SPEC.kill_time_s)
ASKS_S = max(T_S - ASK_AHEAD_S, SENT_S + ASK_AFTER_TTLS * SPEC.lease_ttl_s)
QUESTION = Question(0, 3, "t", "b", "b-1", before_t=False)
AWAY = Contact(failing_since_s=SENT_S)
SPARE = Spare("s", "s-1")


class Stand:
    """The machine of agent a in running round 3 of a and b, with spare s; its lease was renewed at `SENT_S`."""

    def __init__(self, *, of=SPEC, spares=(SPARE,), rank_lives=True, knows=True):
        self.etcd, self.mirror, self.book = Keys(), Mirror(), Book()
        opened(self.etcd, Phase.RUNNING, 3, token="t", sealed_in=3)
        seats = (seat("a", 0), seat("b", 1))
        probes = {PROBES: {"b": "b:1", "s": "s:1"}}
        self.etcd.put(KEYS.world(3, "t", 0), WorldShard(0, 1, seats, tuple(spares), probes))
        self.registered = Registration(KEYS, node("a"), 5, 0xA, self.mirror)
        self.living = 3 if rank_lives else None
        self.machine = Tolerance(of, self.mirror, self, self.book)
        if knows:
            self.look()
        self.tell(Renewed(SENT_S, T_S), at_s=SENT_S)

    def look(self):
        scopes = frozenset({KEYS.worlds(3, "t"), KEYS.all_struck(3), KEYS.interrupts, KEYS.round_scope(3)})
        scopes |= {self.etcd.listing(KEYS.nodes).scope}
        scopes |= {type(KEYS.nodes)(KEYS.round)}
        self.mirror.open(scopes)
        for scope in scopes:
            self.mirror.observe(Listed(self.etcd.listing(scope)))

    def tell(self, *events, at_s):
        for event in events:
            self.machine.observe(event, Now(at_s, UTC))
        return self.machine.decide(Now(at_s, UTC))

    def asks(self, at_s):
        found = [one for one in self.tell(at_s=at_s).effects if isinstance(one, AskPeers)]
        return found[0] if found else None

    def says(self, question=QUESTION, asked="a-1", contact=AWAY, at_s=110.0):
        return self.machine.answer(question, asked, at_s, contact)


# Asking ---------------------------------------------------------------------------------------------------


def test_it_asks_all_recorded_agents_shortly_before_t_and_not_sooner():
    stand = Stand()
    assert stand.tell(at_s=ASKS_S - 0.01).wake_at_s == ASKS_S
    assert stand.asks(ASKS_S - 0.01) is None
    asking = stand.asks(ASKS_S)
    assert asking == AskPeers(
        Question(0, 3, "t", "a", "a-1", before_t=True),
        (Peer("b", "b-1", "b:1"), Peer("s", "s-1", "s:1")),
        ASKS_S,
    )
    assert stand.asks(ASKS_S + 0.5) is None, "one question at a time"


def test_a_renewal_puts_the_question_off():
    stand = Stand()
    later_s = 2.0
    stand.tell(Renewed(SENT_S + later_s, T_S + later_s), at_s=ASKS_S - 0.5)
    assert stand.asks(ASKS_S + later_s - 0.01) is None
    assert stand.asks(ASKS_S + later_s) is not None


@pytest.mark.parametrize(
    ("why", "stand"),
    [
        ("no rank lives", Stand(rank_lives=False)),
        ("the limit is 0", Stand(of=replace(SPEC, outage_limit_s=0.0))),
        ("the world is not known", Stand(knows=False)),
        ("there are too many", Stand(spares=[Spare(f"s{n}", f"s{n}-1") for n in range(MOST_ASKED)])),
    ],
)
def test_nobody_is_asked_where(why, stand):
    assert stand.asks(ASKS_S) is None, why


def test_after_t_there_is_nothing_to_ask_for():
    assert Stand().asks(T_S) is None


def test_nobody_asks_who_is_not_recorded_itself_nor_one_that_was_struck():
    stand = Stand()
    stand.etcd.put(KEYS.struck(3, "s"), Struck("s", "s-1", "fenced"))
    stand.look()
    assert [peer.node_id for peer in stand.asks(ASKS_S).peers] == ["b"]
    stranger = Stand()
    stranger.registered = Registration(KEYS, node("a", "a-2"), 5, 0xA, stranger.mirror)
    assert stranger.asks(ASKS_S) is None


def test_a_yes_of_all_moves_t_of_that_round_and_the_next_question_comes_a_second_later():
    stand = Stand()
    stand.asks(ASKS_S)
    decision = stand.tell(Answered(ASKS_S), at_s=ASKS_S + 0.1)
    assert [one for one in decision.effects if isinstance(one, Extend)] == [
        Extend(3, ASKS_S + SETTLE_S - MARGIN_S)
    ]
    assert stand.asks(ASKS_S + ASK_EVERY_S - 0.01) is None
    again = stand.asks(ASKS_S + ASK_EVERY_S)
    assert again is not None
    assert again.question.before_t is (again.sent_at_s < T_S)


@pytest.mark.parametrize("answer", [Answered(ASKS_S, "b is silent"), Answered(ASKS_S - 1.0)])
def test_a_refusal_or_a_late_answer_moves_nothing(answer):
    stand = Stand()
    stand.asks(ASKS_S)
    decision = stand.tell(answer, at_s=ASKS_S + 0.1)
    assert not [one for one in decision.effects if isinstance(one, Extend)]
    asks_again = stand.asks(ASKS_S + 0.1 + ASK_AGAIN_S) is not None
    assert asks_again is bool(answer.objection), "an answer to an older question leaves the newer one open"


def test_a_yes_for_a_round_whose_ranks_are_being_stopped_moves_nothing():
    stand = Stand()
    stand.asks(ASKS_S)
    stand.living = None
    assert not stand.tell(Answered(ASKS_S), at_s=ASKS_S + 0.1).effects


def test_no_promise_moves_t_beyond_the_outage_limit():
    stand = Stand(of=replace(SPEC, outage_limit_s=2.0))
    at_s, moved = ASKS_S, []
    while (asking := stand.asks(at_s)) is not None:
        decision = stand.tell(Answered(asking.sent_at_s), at_s=at_s)
        moved += [one.until_s for one in decision.effects if isinstance(one, Extend)]
        at_s += ASK_EVERY_S
    assert moved[-1] == T_S + 2.0
    told = [one.notice.reason for one in stand.tell(at_s=at_s).effects if isinstance(one, Notify)]
    assert not told, "it was told when nobody was asked any more"


# Being asked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before_t", "contact", "shared"),
    [
        (True, Contact(), True),
        (False, Contact(), False),
        (False, Contact(failing_since_s=109.5), True),
        (False, Contact(failing_since_s=109.51), False),
        (False, Contact(gap_ended_s=104.0), True),
        (False, Contact(gap_ended_s=103.99), False),
    ],
)
def test_each_condition_of_a_shared_outage_counts_by_itself(before_t, contact, shared):
    question = replace(QUESTION, before_t=before_t)
    assert (shares_outage(question, contact, 110.0, SPEC.lease_ttl_s) is not None) is shared
    stand = Stand()
    assert stand.says(question, contact=contact).yes is shared
    promised = {"b-1": 110.0 + SETTLE_S + SPEC.kill_time_s} if shared else {}
    assert dict(stand.book.outstanding) == promised, "a promise exactly where it is given"


@pytest.mark.parametrize(
    ("question", "asked", "reason"),
    [
        (QUESTION, "a-0", "is not the agent that was asked any more"),
        (replace(QUESTION, attempt=1), "a-1", "is in another attempt"),
        (replace(QUESTION, round=2), "a-1", "knows that round 2 is over"),
        (replace(QUESTION, token="u"), "a-1", "knows that round 3 is over"),
    ],
)
def test_nothing_is_promised_to(question, asked, reason):
    stand = Stand()
    said = stand.says(question, asked)
    assert (said.yes, said.reason) == (False, reason)
    assert not stand.book.outstanding


def test_nothing_is_promised_in_a_round_that_is_interrupted_or_to_whom_it_gave_up():
    stand = Stand()
    stand.etcd.put(KEYS.interrupt(3), Interrupt("b", FaultKind.NODE_LOST, "b", "lost", UTC))
    stand.look()
    assert stand.says().reason == "knows that round 3 is over"
    gave_up = Stand()
    gave_up.book.give_up(3, frozenset({"b-1"}))
    assert gave_up.says().reason == "has given b up"


def told(decision):
    return [one.notice for one in decision.effects if isinstance(one, Notify)]


def test_an_outage_is_told_of_when_ranks_outlive_their_lease_and_when_it_is_over():
    stand = Stand()
    first = stand.asks(ASKS_S)
    stand.tell(Answered(first.sent_at_s), at_s=ASKS_S)
    (away,) = told(stand.tell(at_s=T_S + 0.1))
    assert away.outage is True
    assert "etcd does not answer; ranks run on" in away.sentence
    (back,) = told(stand.tell(Renewed(T_S + 9, T_S + 14), at_s=T_S + 10))
    assert back.outage is False
    assert back.sentence.startswith("etcd answers again")
    assert told(stand.tell(Renewed(T_S + 11, T_S + 16), at_s=T_S + 12)) == []
