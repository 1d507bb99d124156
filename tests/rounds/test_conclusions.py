"""What the coordinator decides when a round is over."""

from __future__ import annotations

import pytest
from coordinator_kit import as_seen, guard, interrupt, joined, leader, report, written
from rounds_kit import KEYS, UTC, all_of, identity, join, node, only, puts, rank_end, spec

from nvrx_async.etcd.types import MAX_TXN_OPERATIONS, Put
from nvrx_async.job.records import (
    Done,
    End,
    EndedBy,
    Exclusion,
    Fault,
    FaultKind,
    Level,
    Outcome,
    Phase,
    Round,
)
from nvrx_async.rounds.effects import Commit
from nvrx_async.rounds.events import Refused
from nvrx_async.rounds.fencing import SETTLE_S
from nvrx_async.rounds.office import ROUNDS_KEPT


def test_a_verdict_waits_for_every_member_that_is_there():
    bench = leader(Phase.RUNNING)
    interrupt(bench)
    report(bench, "b")
    assert bench.tell().reason == "round 0 is over; a still to report"
    assert bench.last.effects == ()
    report(bench, "a", kind=None, incarnation="a-0")
    assert bench.tell().effects == (), "another incarnation's report"


def test_the_verdict_opens_the_next_round_in_the_same_step():
    bench = leader(Phase.RUNNING)
    interrupt(bench)
    report(bench, "a", kind=None)
    report(bench, "b")
    commit = only(bench.tell(), Commit)
    (txn,) = commit.txns
    assert txn.when == guard(bench)
    assert set(puts(commit)) == {KEYS.end(0), KEYS.round}
    bench.outcome(commit)
    end, following = written(bench, End, KEYS.end(0)), written(bench, Round, KEYS.round)
    assert (end.level, end.root.kind, end.root.node_id) == (Level.IN_JOB, FaultKind.SIGNAL, "b")
    assert (following.number, following.phase, following.token) == (1, Phase.FORMING, None)
    assert following.previous_token == "t"
    assert following.ledger.restarts == 1
    assert following.why == end.root.sentence


def test_where_all_have_joined_and_nobody_moves_the_verdict_starts_the_next_round():
    bench = leader(Phase.RUNNING)
    interrupt(bench)
    report(bench, "a", kind=None, join=join("a"))
    report(bench, "b", join=join("b"))
    commit = only(bench.tell(), Commit)
    assert commit.txns[-1].when == guard(bench)
    assert set(puts(commit)) == {KEYS.end(0), KEYS.round}
    bench.outcome(commit)
    following = written(bench, Round, KEYS.round)
    assert (following.number, following.phase, following.token, following.sealed_in) == (
        1,
        Phase.RUNNING,
        "t",
        0,
    )
    assert following.verdict == written(bench, End, KEYS.end(0))
    assert (following.master_address, following.world_size, following.ledger.restarts) == ("10.0.0.a", 4, 1)


@pytest.mark.parametrize(
    "why", ["one has not joined", "one is excluded", "one is gone", "a spare has joined"]
)
def test_where_somebody_moves_the_next_round_has_to_form(why):
    bench = leader(Phase.RUNNING, registered="abc" if why == "a spare has joined" else "ab")
    interrupt(bench)
    report(bench, "a", kind=None, join=join("a"))
    report(bench, "b", join=None if why == "one has not joined" else join("b"))
    if why == "one is excluded":
        bench.etcd.put(KEYS.excluded("b"), Exclusion("b", "bad", "me", UTC))
    elif why == "one is gone":
        bench.etcd.delete(KEYS.node("b"))
    elif why == "a spare has joined":
        joined(bench, "c", number=1)
    bench.outcome(only(bench.tell(), Commit))
    following = written(bench, Round, KEYS.round)
    assert (following.phase, following.token, following.previous_token) == (Phase.FORMING, None, "t")


def test_a_lost_members_verdict_does_not_wait_for_it_and_is_not_billed():
    bench = leader(Phase.RUNNING, registered="a")
    interrupt(bench, kind=FaultKind.NODE_LOST)
    report(bench, "a", kind=None)
    bench.outcome(only(bench.tell(Refused("interrupt")), Commit))
    end, following = written(bench, End, KEYS.end(0)), written(bench, Round, KEYS.round)
    assert end.root.kind is FaultKind.NODE_LOST
    assert (following.ledger.restarts, following.ledger.membership) == (0, 1)


def test_the_last_failure_ends_the_attempt_with_its_root():
    bench = leader(Phase.RUNNING, of=spec(max_restarts=0))
    interrupt(bench)
    report(bench, "a", kind=None)
    report(bench, "b")
    commit = only(bench.tell(), Commit)
    assert commit.txns[-1].when == guard(bench)
    bench.outcome(commit)
    outcome = written(bench, Outcome, KEYS.outcome)
    assert (outcome.success, outcome.exit_code) == (False, 1)
    assert outcome.root.node_id == "b"
    assert written(bench, End, KEYS.end(0)).level is Level.STOP
    assert written(bench, Round, KEYS.round).phase is Phase.ENDED


def test_an_outcome_waits_until_a_lost_members_ranks_are_surely_dead_and_compares_its_absence():
    """Its coordinator did not live when the world was sealed: only time fences."""
    me = identity("a", incarnation="a-1")
    bench = leader(Phase.RUNNING, of=spec(max_restarts=0), me=me, registered="")
    bench.etcd.put(KEYS.node("a"), node("a"))  # re-registered after the seal
    interrupt(bench, who="a")
    report(bench, "a")
    bench.tell(Refused("interrupt"))
    assert not all_of(bench.last, Commit)
    fenced_s = 100.0 + 6 + SETTLE_S + 2.0
    assert bench.last.wake_at_s == fenced_s
    commit = only(bench.tell(at_s=fenced_s), Commit)
    assert commit.tag == "outcome"
    assert commit.txns[-1].when == (*guard(bench), as_seen(bench, "b"))
    bench.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(bench.outcome(commit), Refused)


def test_rounds_of_long_ago_are_forgotten():
    number = ROUNDS_KEPT + 5
    bench = leader(Phase.RUNNING, number)
    for old in (5, 6):
        bench.etcd.put(KEYS.done(old, "a"), Done("a", "a-1"))
    interrupt(bench, number)
    report(bench, "a", number, kind=None)
    report(bench, "b", number)
    bench.outcome(only(bench.tell(), Commit))
    assert KEYS.done(5, "a") not in bench.etcd.held
    assert KEYS.done(6, "a") in bench.etcd.held


@pytest.mark.parametrize(("number", "forgotten"), [(95, 0), (96, 32), (97, 0), (32, 0)])
def test_interrupts_of_long_ago_are_forgotten_many_in_one_step(number, forgotten):
    bench = leader(Phase.RUNNING, number)
    for old in range(32 if number > 64 else 0, number + 1):
        interrupt(bench, old)
    before = {key for key in bench.etcd.held if KEYS.interrupts.covers(key)}
    report(bench, "a", number, kind=None)
    report(bench, "b", number)
    commit = only(bench.tell(), Commit)
    assert all(len(txn.then) <= MAX_TXN_OPERATIONS for txn in commit.txns)
    bench.outcome(commit)
    gone = before - bench.etcd.held.keys()
    assert gone == {KEYS.interrupt(old) for old in range(32, 32 + forgotten)}


def test_a_start_that_failed_has_its_own_account():
    bench = leader(Phase.RUNNING)
    interrupt(bench)
    report(bench, "a", kind=None)
    not_ready = rank_end(2, FaultKind.EXIT_CODE, ready=False, by=EndedBy.ITSELF)
    bench.etcd.put(KEYS.fault(0, "b"), Fault("b", "b-1", "host-b", (not_ready,)))
    bench.outcome(only(bench.tell(), Commit))
    assert written(bench, Round, KEYS.round).ledger.start_failures == 1


def test_every_put_of_a_coordinator_outlives_it():
    bench = leader(Phase.RUNNING)
    interrupt(bench)
    report(bench, "a", kind=None)
    report(bench, "b")
    for txn in only(bench.tell(), Commit).txns:
        assert all(put.lease == 0 for put in txn.then if isinstance(put, Put))
