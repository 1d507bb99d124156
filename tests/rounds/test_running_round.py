"""A round that runs, watched over by the coordinator."""

from __future__ import annotations

import pytest
from coordinator_kit import as_seen, guard, interrupt, leader
from rounds_kit import KEYS, all_of, node, only, puts

from nvrx_async.etcd.types import CreatedAt
from nvrx_async.job.codec import decode
from nvrx_async.job.records import Done, FaultKind, Interrupt, Outcome, Phase
from nvrx_async.rounds.effects import Commit
from nvrx_async.rounds.events import Refused


def test_a_running_round_asks_for_nothing():
    bench = leader(Phase.RUNNING)
    assert (bench.last.effects, bench.last.wake_at_s) == ((), None)


@pytest.mark.parametrize("successor", [None, node("b", "b-2")])
def test_a_lost_member_interrupts_the_round_if_its_key_still_is_as_seen(successor):
    bench = leader(Phase.RUNNING, registered="a")
    if successor:
        bench = leader(Phase.RUNNING, registered="a")
        bench.etcd.put(KEYS.node("b"), successor)
        bench.tell(Refused("interrupt"))
    commit = only(bench.last, Commit)
    (txn,) = commit.txns
    assert txn.when == (*guard(bench), CreatedAt(KEYS.interrupt(0), 0), as_seen(bench, "b"))
    made = decode(Interrupt, "", txn.then[0].value)
    assert (made.kind, made.node_id, made.by) == (FaultKind.NODE_LOST, "b", "a")
    assert made.reason == "node b (host host-b) lost: its lease ended"
    bench.etcd.delete(KEYS.node("b"))
    bench.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(bench.outcome(commit), Refused), "it is back"


def test_a_member_that_is_lost_after_it_finished_is_no_fault():
    bench = leader(Phase.RUNNING, registered="a")
    bench.etcd.put(KEYS.done(0, "b"), Done("b", "b-1"))
    bench.tell(Refused("interrupt"))
    strike = only(bench.last, Commit)
    assert strike.tag == "strike", "nobody needs to ask it for a promise any more"
    assert set(puts(strike)) == {KEYS.struck(0, "b")}
    assert not all_of(bench.settle(bench.outcome(strike)), Commit)


def test_success_when_all_are_done_compares_that_nobody_interrupted():
    bench = leader(Phase.RUNNING)
    bench.etcd.put(KEYS.done(0, "a"), Done("a", "a-1"))
    assert bench.tell().effects == ()
    bench.etcd.put(KEYS.done(0, "b"), Done("b", "b-1"))
    commit = only(bench.tell(), Commit)
    (txn,) = commit.txns
    assert txn.when == (*guard(bench), CreatedAt(KEYS.interrupt(0), 0))
    outcome = decode(Outcome, "", puts(commit)[KEYS.outcome].value)
    assert (outcome.success, outcome.exit_code, outcome.reason) == (True, 0, "all ranks finished")
    interrupt(bench)
    assert isinstance(bench.outcome(commit), Refused)


def test_another_incarnations_done_does_not_count():
    bench = leader(Phase.RUNNING)
    bench.etcd.put(KEYS.done(0, "a"), Done("a", "a-1"))
    bench.etcd.put(KEYS.done(0, "b"), Done("b", "b-0"))
    assert bench.tell().effects == ()
