"""What the member wants done, gathered."""

from __future__ import annotations

import pytest

from nvrx_async.etcd.types import Txn
from nvrx_async.rounds.effects import Commit, Finish, Notify, ReservePort, Waiting
from nvrx_async.rounds.outbox import Outbox

TXN = Txn((), ())


def test_a_decision_holds_what_was_wanted_since_it_began():
    out = Outbox()
    out.add(ReservePort(1))
    out.begin()
    out.add(ReservePort(2), ReservePort(3))
    decision = out.decision("why")
    assert (decision.effects, decision.wake_at_s, decision.reason) == (
        (ReservePort(2), ReservePort(3)), None, "why",
    )  # fmt: skip


@pytest.mark.parametrize(("moments", "first"), [((3.0, None, 2.0), 2.0), ((None,), None)])
def test_the_earliest_moment_to_wake_counts(moments, first):
    out = Outbox()
    for at_s in moments:
        out.wake(at_s)
    assert out.decision("").wake_at_s == first


def test_one_commit_at_a_time():
    out = Outbox()
    out.commit("join", TXN, joins=4)
    out.commit("report", TXN, 3)
    assert out.decision("").effects == (Commit("join", (TXN,)),)
    assert out.answered("report") is None
    assert (out.answered("join").joins, out.in_flight) == (4, None)


def test_without_a_standing_registration_only_that_is_committed():
    out = Outbox()
    out.stands = False
    out.commit("join", TXN)
    assert out.in_flight is None
    out.commit("again", TXN)
    assert out.in_flight.tag == "again"


def test_people_are_told_once():
    out = Outbox()
    for sentence in ("one", "two"):
        out.tell_once("what", Waiting(sentence))
    assert out.decision("").effects == (Notify(Waiting("one")),)


def test_the_end_of_a_life_is_an_effect_too():
    out = Outbox()
    assert out.finish(75, "enough", again=True) == "enough"
    assert out.finished
    assert out.decision("").effects == (Finish(75, "enough", again=True),)
