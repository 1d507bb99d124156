"""Who leads, and that one alone."""

from __future__ import annotations

import pytest
from coordinator_kit import OFFICE, SEATS, joined, leader
from rounds_kit import KEYS, UTC, Bench, all_of, identity, join, node, only, opened, puts, sealed, spec

from nvrx_async.etcd.types import CreatedAt, Delete, Scope
from nvrx_async.job.keys import current
from nvrx_async.job.records import Current, Outcome, Phase, Round, Spare
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Campaign, Commit
from nvrx_async.rounds.events import Committed, Deposed, Elected, Refused, Tick
from nvrx_async.rounds.fencing import SETTLE_S
from nvrx_async.rounds.promises import Book


def test_who_does_not_lead_reads_and_decides_nothing():
    bench = Bench(Coordinator, identity())
    opened(bench.etcd)
    joined(bench, "a", "b")
    assert bench.tell().effects == ()
    assert bench.machine.scopes() == frozenset()


def test_a_deposed_coordinator_stops_deciding_and_its_writes_are_refused():
    bench = leader()
    joined(bench, "a", "b")
    commit = only(bench.tell(), Commit)
    bench.etcd.delete(OFFICE)
    assert isinstance(bench.outcome(commit), Refused)
    assert bench.tell(Refused("seal"), Deposed(OFFICE)).reason == "another agent leads"
    assert bench.last.effects == ()


def test_another_candidacys_end_deposes_nobody():
    bench = leader()
    bench.tell(Deposed("/some/other"))
    assert bench.last.reason != "another agent leads"


def test_it_decides_nothing_while_a_commit_is_under_way_and_again_when_it_is_answered():
    bench = leader()
    joined(bench, "a", "b")
    first = only(bench.tell(), Commit)
    assert bench.tell(Tick()).effects == ()
    assert bench.tell(Committed("other", ())).effects == ()
    again = only(bench.tell(Refused("seal")), Commit)
    assert again.tag == first.tag == "seal"
    assert set(puts(again)) != set(puts(first)), "under a new token: the old one's leftovers are never read"


def test_it_decides_nothing_before_it_has_read_everything():
    bench = Bench(Coordinator, identity())
    opened(bench.etcd)
    bench.etcd.put(OFFICE, Spare("", "a-1"))
    joined(bench, "a", "b")
    assert bench.blind(Elected(OFFICE, 5)).reason == "leads; reading the attempt"


@pytest.mark.parametrize("how", ["outcome", "superseded", "ended"])
def test_nothing_is_decided_for_an_attempt_that_is_over(how):
    bench = leader()
    joined(bench, "a", "b")
    if how == "outcome":
        bench.etcd.put(
            KEYS.outcome, Outcome(success=True, exit_code=0, reason="done", round=0, decided_utc=UTC)
        )
    elif how == "superseded":
        bench.etcd.put(current("job"), Current(1, UTC))
    else:
        bench.etcd.put(KEYS.round, Round(0, Phase.ENDED, UTC))
    assert bench.tell().effects == ()


def test_an_agent_that_is_not_recorded_resigns_while_a_recorded_one_is_there():
    bench = leader(Phase.RUNNING, me=identity("c", incarnation="c-1", lease=0xC), registered="abc")
    bench.look()
    assert "resign" in bench.last.reason
    commit = only(bench.tell(), Commit)
    (txn,) = commit.txns
    assert txn.when == (CreatedAt(OFFICE, bench.etcd.held[OFFICE].create_revision),)
    new = KEYS.election(0xC, 1)
    assert txn.then[0] == Delete(Scope(OFFICE))
    assert (txn.then[1].key, txn.then[1].lease) == (new, 0xC)
    decision = bench.tell(bench.outcome(commit))
    assert only(decision, Campaign) == Campaign(new, bench.etcd.held[new].create_revision)
    assert bench.tell(Deposed(OFFICE)).effects == ()


def test_a_recorded_spare_may_lead():
    bench = Bench(Coordinator, identity("c", incarnation="c-1"))
    for name in "abc":
        bench.etcd.put(KEYS.node(name), node(name))
    sealed(bench.etcd, SEATS, spares=(Spare("c", "c-1"),))
    opened(bench.etcd, Phase.RUNNING, token="t")
    bench.etcd.put(OFFICE, Spare("", "c-1"))
    bench.tell(Elected(OFFICE, bench.etcd.held[OFFICE].create_revision))
    assert bench.last.reason == "round 0 runs"


def test_a_newcomer_leads_when_no_recorded_agent_is_left_but_must_wait_the_longest():
    bench = leader(
        Phase.FORMING, 1, me=identity("c", incarnation="c-1"), registered="c", of=spec(min_nodes=1)
    )
    joined(bench, "c", number=1)
    wait_s = 6 + SETTLE_S + 2.0 + 120.0
    bench.tell()
    assert bench.last.wake_at_s == 100.0 + wait_s
    assert not all_of(bench.tell(at_s=100.0 + wait_s - 0.1), Commit)
    assert only(bench.tell(at_s=100.0 + wait_s), Commit).tag == "seal"


def test_a_restarted_agent_has_its_predecessors_seat_and_outwaits_what_that_one_promised():
    """It does not know of promises, the last of which was given when the predecessor died: before its own office."""
    me = identity("a", incarnation="a-2")
    bench = leader(Phase.FORMING, 1, me=me, registered="", of=spec(min_nodes=1))
    bench.etcd.put(KEYS.node("a"), node("a", "a-2", succeeds="a-1"))
    bench.etcd.put(KEYS.join(1, "a"), join("a", "a-2"))
    bench.tell()
    assert bench.last.wake_at_s == 100.0 + 6 + SETTLE_S + 2.0, "recorded: without the outage limit"
    before, promise = Book(), bench.last.wake_at_s
    before.promise("b-1", 100.0, spec())
    assert before.outstanding["b-1"] < promise
