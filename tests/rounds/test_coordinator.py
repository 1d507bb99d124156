"""What the elected agent decides for the job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rounds_kit import (
    KEYS,
    SPEC,
    UTC,
    Bench,
    all_of,
    identity,
    join,
    node,
    only,
    opened,
    process,
    puts,
    rank_end,
    sealed,
    seat,
    spec,
)

from nvrx_async.etcd.types import MAX_TXN_OPERATIONS, CreatedAt, Delete, ModifiedAt, Put, Scope
from nvrx_async.job.codec import decode
from nvrx_async.job.keys import current
from nvrx_async.job.records import (
    FIRST_PROBE,
    REGISTERED,
    SEATS_PER_SHARD,
    Assignment,
    Current,
    Done,
    End,
    EndedBy,
    Exclusion,
    Fault,
    FaultKind,
    Interrupt,
    Ledger,
    Level,
    Outcome,
    Phase,
    Round,
    Spare,
    WorldShard,
)
from nvrx_async.job.trace import OPENED_BY, TRACEPARENT
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Campaign, Commit, Notify, Waiting
from nvrx_async.rounds.events import Committed, Deposed, Elected, Refused, Tick
from nvrx_async.rounds.fencing import SETTLE_S
from nvrx_async.rounds.forming_round import NEVER_READY, REQUEUE
from nvrx_async.rounds.office import ROUNDS_KEPT
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.seating import SEAL_KEPT

OFFICE = KEYS.election(0xA)
SEATS = (seat("a", 0), seat("b", 1))


def leader(phase=Phase.FORMING, number=0, of=SPEC, me=None, registered="ab", world=None, **changes):
    """An elected agent and an attempt with these nodes; with a world before a forming round that is not the first."""
    bench = Bench(Coordinator, me or identity(), of)
    for name in registered:
        bench.etcd.put(KEYS.node(name), node(name), lease=1)
    if phase is Phase.RUNNING:
        sealed(bench.etcd, world or SEATS, changes.get("sealed_in", number))
        changes = {"token": "t", **changes}
    elif number:
        sealed(bench.etcd, world or SEATS, changes.get("sealed_in", number - 1))
        changes = {"previous_token": "t", **changes}
    opened(bench.etcd, phase, number, of, **changes)
    bench.etcd.put(OFFICE, Spare("", "a-1"), lease=1)
    bench.tell(Elected(OFFICE, bench.etcd.held[OFFICE].create_revision))
    return bench


def joined(bench, *names, number=0):
    for name in names:
        bench.etcd.put(KEYS.join(number, name), join(name))


def report(bench, name, number=0, kind=FaultKind.SIGNAL, incarnation="", **changes):
    ends = (rank_end(0 if name == "a" else 2, kind, exit_code=None, signal=11),) if kind else ()
    made = Fault(name, incarnation or f"{name}-1", f"host-{name}", ends)
    bench.etcd.put(KEYS.fault(number, name), replace(made, **changes))


def interrupt(bench, number=0, kind=FaultKind.SIGNAL, who="b"):
    bench.etcd.put(KEYS.interrupt(number), Interrupt(who, kind, who, f"{kind.value} on {who}", UTC, 2))


def guard(bench):
    """What every write of a coordinator compares: a deposed one's does nothing."""
    attempt = current("job")
    return (
        CreatedAt(OFFICE, bench.etcd.held[OFFICE].create_revision),
        ModifiedAt(attempt, bench.etcd.held[attempt].mod_revision),
        ModifiedAt(KEYS.round, bench.etcd.held[KEYS.round].mod_revision),
        CreatedAt(KEYS.outcome, 0),
    )


def as_seen(bench, name):
    held = bench.etcd.held.get(KEYS.node(name))
    return ModifiedAt(KEYS.node(name), held.mod_revision if held else 0)


def written(bench, cls, key):
    return decode(cls, key, bench.etcd.held[key].value)


# Leadership ------------------------------------------------------------------------------------------------


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


# Forming ---------------------------------------------------------------------------------------------------


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


# Running ---------------------------------------------------------------------------------------------------


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


# The end of a round ----------------------------------------------------------------------------------------


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
