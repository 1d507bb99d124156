"""A round that forms: when its world is sealed, and as what."""

from __future__ import annotations

import pytest
from coordinator_kit import OFFICE, as_seen, guard, interrupt, joined, leader, report, written
from rounds_kit import KEYS, UTC, Bench, identity, join, node, only, opened, process, puts, seat, spec

from nvrx_async.etcd.types import MAX_TXN_OPERATIONS
from nvrx_async.job.codec import decode
from nvrx_async.job.records import (
    FIRST_PROBE,
    REGISTERED,
    SEATS_PER_SHARD,
    Assignment,
    Ledger,
    Outcome,
    Phase,
    Round,
    Spare,
    WorldShard,
)
from nvrx_async.job.trace import OPENED_BY, TRACEPARENT
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Commit, Notify, Waiting
from nvrx_async.rounds.events import Elected, Refused, Tick
from nvrx_async.rounds.forming_round import NEVER_READY, REQUEUE
from nvrx_async.rounds.office import ROUNDS_KEPT
from nvrx_async.rounds.seating import SEAL_KEPT


def test_a_seal_writes_assignments_and_world_and_then_the_round_with_their_token():
    bench = leader()
    joined(bench, "b", "a")
    commit = only(bench.tell(), Commit)
    (txn,) = commit.txns
    assert txn.when == guard(bench)
    bench.outcome(commit)
    now_round = written(bench, Round, KEYS.round)
    assert (now_round.phase, now_round.world_size, now_round.nodes) == (Phase.RUNNING, 4, 2)
    assert now_round.running_utc == UTC
    shard = written(bench, WorldShard, KEYS.world(0, now_round.token, 0))
    assert [one.node_id for one in shard.seats] == ["a", "b"]
    assignment = written(bench, Assignment, KEYS.assignment(0, now_round.token, "b"))
    registered = {REGISTERED: {"at_utc": node("b", "b-1").registered_utc}}
    assert assignment == Assignment(0, shard.seats[1], 4, 2, "10.0.0.a", 29500, process(), registered)
    assert all(put.lease == 0 for put in puts(commit).values())


def test_each_assignment_tells_where_the_agent_of_rank_0_answers():
    """In a world that is too large for its agents to know it."""
    bench = leader()
    bench.etcd.put(KEYS.node("a"), node("a", probe="10.0.0.a:7"))
    joined(bench, "b", "a")
    commit = only(bench.tell(), Commit)
    bench.outcome(commit)
    now_round = written(bench, Round, KEYS.round)
    for name in ("a", "b"):
        assignment = written(bench, Assignment, KEYS.assignment(0, now_round.token, name))
        assert assignment.extra[FIRST_PROBE] == "10.0.0.a:7"


def test_unknown_fields_of_the_round_and_its_ledger_survive_a_seal_and_a_restart():
    ledger = Ledger(restarts=1, extra={"dollars": 7})
    bench = leader(Phase.FORMING, 0, extra={"colour": "red"}, ledger=ledger, why="because")
    joined(bench, "a", "b")
    bench.tell(bench.outcome(only(bench.tell(), Commit)))
    running = written(bench, Round, KEYS.round)
    assert (running.extra, running.ledger, running.why) == ({"colour": "red"}, ledger, "because")
    interrupt(bench)
    report(bench, "a", kind=None)
    report(bench, "b")
    bench.outcome(only(bench.tell(), Commit))
    following = written(bench, Round, KEYS.round)
    trace = {name: following.extra[name] for name in (TRACEPARENT, OPENED_BY)}
    assert following.extra == {"colour": "red", **trace}
    assert following.ledger.extra == {"dollars": 7}


def test_a_seal_compares_that_members_taken_for_gone_still_are():
    bench = leader(Phase.FORMING, 1, registered="a", of=spec(min_nodes=1))
    joined(bench, "a", number=1)
    commit = only(bench.tell(at_s=1e6), Commit)
    assert commit.txns[-1].when == (*guard(bench), as_seen(bench, "b"))
    bench.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(bench.outcome(commit), Refused)


def test_waiting_is_told_once_for_each_reason_and_wakes_in_time():
    bench = leader()
    joined(bench, "a")
    decision = bench.tell()
    assert only(decision, Notify).notice == Waiting("round 0: 1 of 2 nodes joined; here: a", 700.0)
    assert decision.wake_at_s == 700.0
    assert bench.tell(Tick()).effects == ()
    assert bench.last.wake_at_s == 700.0


def test_before_anybody_joined_nothing_is_told():
    assert leader().last.effects == ()


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (0, NEVER_READY, "never started: in 600 s (--join-timeout) 1 of 2 nodes joined"),
        (1, REQUEUE, "too few nodes to go on: in 600 s (--join-timeout) 1 of 2 nodes joined; missing: b"),
    ],
)
def test_too_few_nodes_until_the_join_timeout_end_the_attempt(number, code, words):
    bench = leader(Phase.FORMING, number, registered="a")
    joined(bench, "a", number=number)
    bench.tell()
    commit = only(bench.tell(at_s=100.0 + 600.0), Commit)
    assert commit.txns[-1].when == (*guard(bench), *([as_seen(bench, "b")] if number else []))
    bench.outcome(commit)
    outcome = written(bench, Outcome, KEYS.outcome)
    assert (outcome.success, outcome.exit_code, outcome.round) == (False, code, number)
    assert outcome.reason.startswith(words)
    assert written(bench, Round, KEYS.round).phase is Phase.ENDED


def test_forming_times_count_from_where_this_coordinator_saw_the_round():
    bench = leader()
    joined(bench, "a")
    bench.tell(at_s=100.0)
    bench.etcd.put(KEYS.round, Round(1, Phase.FORMING, UTC))
    joined(bench, "a", number=1)
    bench.tell(at_s=150.0)
    assert bench.last.wake_at_s == 750.0


def big_world(count):
    names = [f"n{i:05}" for i in range(count)]
    bench = Bench(
        Coordinator, identity(names[0], incarnation=f"{names[0]}-1"), spec(min_nodes=count, max_nodes=count)
    )
    opened(bench.etcd, of=spec(min_nodes=count, max_nodes=count))
    for name in names:
        bench.etcd.put(KEYS.node(name), node(name, slots=1))
        bench.etcd.put(KEYS.join(0, name), join(name))
    bench.etcd.put(OFFICE, Spare("", "a-1"))
    bench.tell(Elected(OFFICE, bench.etcd.held[OFFICE].create_revision))
    return bench, names


def test_a_world_of_more_than_4000_seats_is_sharded_and_batched_and_runs_with_the_last_step_only():
    bench, names = big_world(SEATS_PER_SHARD + 1)
    commit = only(bench.last, Commit)
    assert all(max(len(txn.when), len(txn.then)) <= MAX_TXN_OPERATIONS for txn in commit.txns)
    assert all(txn.when[:4] == guard(bench) for txn in commit.txns)
    with_round = [KEYS.round in puts(txn) for txn in commit.txns]
    assert with_round == [False] * (len(commit.txns) - 1) + [True]
    shards = [decode(WorldShard, "", put.value) for key, put in puts(commit).items() if "/world/" in key]
    assert [(one.shard, one.shards, len(one.seats)) for one in shards] == [(0, 2, 4000), (1, 2, 1)]
    assert [one.node_id for shard in shards for one in shard.seats] == names
    assert all(len(put.value) < 1 << 20 for put in puts(commit).values())
    assert len([key for key in puts(commit) if "/assign/" in key]) == len(names)


def test_many_absent_members_are_all_compared_within_etcds_limits():
    world = tuple(seat(f"n{i}", i) for i in range(300))
    bench = leader(Phase.FORMING, 1, registered="a", world=(seat("a", 0), *world[1:]), of=spec(min_nodes=1))
    joined(bench, "a", number=1)
    commit = only(bench.tell(at_s=1e6), Commit)
    assert all(len(txn.when) <= MAX_TXN_OPERATIONS for txn in commit.txns)
    compared = {compare.key for txn in commit.txns for compare in txn.when}
    assert {KEYS.node(f"n{i}") for i in range(1, 300)} <= compared


def test_a_round_in_which_nobody_moved_keeps_the_seal_and_costs_one_write():
    bench = leader(Phase.FORMING, 1)
    joined(bench, "a", "b", number=1)
    commit = only(bench.tell(), Commit)
    assert set(puts(commit)) == {KEYS.round}
    assert commit.txns[-1].when == guard(bench)
    bench.tell(bench.outcome(commit))
    now_round = written(bench, Round, KEYS.round)
    assert (now_round.phase, now_round.token, now_round.sealed_in) == (Phase.RUNNING, "t", 0)
    assert (now_round.master_address, now_round.master_port) == ("10.0.0.a", 29500)
    assert (now_round.world_size, now_round.nodes) == (4, 2)
    assert bench.last.reason == "round 1 runs", "it reads the world where it stands"


def test_a_report_joins_the_next_round_on_the_terms_of_a_join():
    bench = leader(Phase.FORMING, 1)
    for name in "ab":
        report(bench, name, join=join(name))
    assert set(puts(only(bench.tell(), Commit))) == {KEYS.round}
    bench = leader(Phase.FORMING, 1, of=spec(min_nodes=1))
    for name in "ab":
        report(bench, name, join=join(name))
    bench.etcd.put(KEYS.node("b"), node("b", "b-2"))
    commit = only(bench.tell(at_s=1e6), Commit)
    assert KEYS.assignment(1, "a-1-1", "b") not in puts(commit), "its report's incarnation is gone"


def test_the_seal_is_handed_on_from_round_to_round_and_renewed_before_it_is_forgotten():
    bench = leader(Phase.RUNNING, 7, sealed_in=4)
    interrupt(bench, 7)
    report(bench, "a", 7, kind=None)
    report(bench, "b", 7)
    bench.outcome(only(bench.tell(), Commit))
    following = written(bench, Round, KEYS.round)
    assert (following.previous_token, following.sealed_in) == ("t", 4)
    assert SEAL_KEPT < ROUNDS_KEPT
    for number, written_anew in ((4 + SEAL_KEPT - 1, False), (4 + SEAL_KEPT, True)):
        bench = leader(Phase.FORMING, number, sealed_in=4)
        joined(bench, "a", "b", number=number)
        commit = only(bench.tell(), Commit)
        assert any("/assign/" in key for key in puts(commit)) is written_anew


@pytest.mark.parametrize("who", ["another incarnation", "a spare more", "one less"])
def test_a_round_in_which_somebody_moved_is_sealed_anew(who):
    bench = leader(Phase.FORMING, 1, registered="abc", of=spec(min_nodes=1))
    joined(bench, "a", "b", number=1)
    if who == "another incarnation":
        bench.etcd.put(KEYS.node("b"), node("b", "b-2", succeeds="b-1"))
        bench.etcd.put(KEYS.join(1, "b"), join("b", "b-2"))
    elif who == "a spare more":
        joined(bench, "c", number=1)
    else:
        bench.etcd.delete(KEYS.node("b"))
        bench.etcd.delete(KEYS.join(1, "b"))
    commit = only(bench.tell(at_s=1e6), Commit)
    assert KEYS.assignment(1, "a-1-1", "a") in puts(commit)
    bench.outcome(commit)
    assert written(bench, Round, KEYS.round).sealed_in == 1
