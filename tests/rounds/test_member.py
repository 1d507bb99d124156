"""What an agent does with its own ranks and its own keys."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from member_kit import GOOD_UNTIL_S, assignment, member, run_round, running
from rounds_kit import (
    KEYS,
    SPEC,
    UTC,
    Bench,
    all_of,
    identity,
    node,
    only,
    opened,
    process,
    puts,
    rank_end,
)

from nvrx_async.etcd.types import CreatedAt, Delete, Deleted, Empty, Exists, ModifiedAt, Scope
from nvrx_async.job.codec import decode
from nvrx_async.job.keys import current
from nvrx_async.job.records import (
    Current,
    Done,
    EndedBy,
    Fault,
    FaultKind,
    Interrupt,
    Join,
    Mark,
    Node,
    Outcome,
    Phase,
    Round,
)
from nvrx_async.job.times import earlier
from nvrx_async.rounds.effects import (
    Campaign,
    Commit,
    Finish,
    Finished,
    Notify,
    ProveDead,
    RankFailed,
    Rely,
    ReservePort,
    Revoke,
    StartRanks,
    StopRanks,
)
from nvrx_async.rounds.events import (
    Changed,
    Committed,
    KeeperLost,
    KeeperReady,
    LeaseGranted,
    LeaseLost,
    LeaveRequested,
    PortReserved,
    Proof,
    Proven,
    RankEnded,
    RanksGone,
    Refused,
    Renewed,
    Tick,
)
from nvrx_async.rounds.holding import RETURN_LIMIT_S
from nvrx_async.rounds.member import LEAVE_LIMIT_S, REQUEUE, SIGNAL_BASE, Member

LATE = Renewed(90.0, 100.0)
LEAVE = LeaveRequested(signal.SIGTERM)


def reported(bench, number=0):
    """What the agent under test reported on a round."""
    held = bench.etcd.held.get(KEYS.fault(number, "a"))
    return decode(Fault, "", held.value) if held else None


def interrupted(bench, number=0, kind=FaultKind.SIGNAL, by="b"):
    bench.etcd.put(KEYS.interrupt(number), Interrupt(by, kind, by, "because", UTC))


def outcome(exit_code, reason):
    return Outcome(exit_code == 0, exit_code, reason, 0, UTC)


def guard(bench):
    """What every write of a registered member compares."""
    attempt = current("job")
    return (
        ModifiedAt(attempt, bench.etcd.held[attempt].mod_revision),
        CreatedAt(KEYS.node("a"), bench.etcd.held[KEYS.node("a")].create_revision),
    )


def at_round(bench):
    return ModifiedAt(KEYS.round, bench.etcd.held[KEYS.round].mod_revision)


FAILED_RANK = rank_end(1, FaultKind.SIGNAL, exit_code=None, signal=9, by=EndedBy.SOMEONE_ELSE)
GOOD_ENDS = (rank_end(0), rank_end(1))
STOPPED = tuple(rank_end(i, FaultKind.STOPPED_BY_US, by=EndedBy.US) for i in (0, 1))


# Entering --------------------------------------------------------------------------------------------------


def test_it_registers_stands_for_election_with_that_revision_and_joins():
    bench = Bench(Member, identity())
    effects = bench.settle(KeeperReady(1), Renewed(90.0, GOOD_UNTIL_S))
    assert [commit.tag for commit in all_of(effects, Commit)] == ["enter"]
    created = bench.etcd.held[KEYS.election(0xA)].create_revision
    assert all_of(effects, Campaign) == [Campaign(KEYS.election(0xA), created)]
    assert all_of(effects, ReservePort) == [ReservePort(0)]


def test_a_refused_entry_is_decided_anew():
    bench = Bench(Member, identity())
    first = only(bench.tell(), Commit)
    opened(bench.etcd)
    bench.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(bench.outcome(first), Refused)
    second = only(bench.tell(Refused("enter")), Commit)
    assert set(puts(second)) == {KEYS.node("a"), KEYS.election(0xA)}


def test_while_entering_nothing_is_asked_twice():
    bench = Bench(Member, identity())
    only(bench.tell(), Commit)
    assert bench.tell(Tick()).effects == ()


def test_a_dead_predecessor_is_proven_dead_once_then_its_lease_ended_once():
    bench = Bench(Member, identity())
    opened(bench.etcd)
    holder = node("a", "old", process=process(99))
    bench.etcd.put(KEYS.node("a"), holder, lease=0x99)
    assert bench.tell().effects == (ProveDead(holder),)
    assert bench.tell(Tick()).effects == ()
    assert bench.tell(Proven("old", Proof.DEAD, "no such pid")).effects == (Revoke(0x99),)
    assert bench.tell(Tick()).effects == ()
    bench.etcd.delete(KEYS.node("a"))
    assert puts(only(bench.tell(), Commit))[KEYS.node("a")].lease == 0xA


def test_a_late_agent_of_a_finished_launch_ends_as_the_launch_did():
    bench = Bench(Member, identity(launch_id="slurm-1.0"))
    opened(bench.etcd)
    bench.etcd.put(
        KEYS.outcome,
        Outcome(
            success=False, exit_code=7, reason="bad luck", round=0, decided_utc=UTC, launch_id="slurm-1.0"
        ),
    )
    decision = bench.tell()
    assert only(decision, Finish) == Finish(7, "bad luck")
    assert isinstance(only(decision, Notify).notice, Finished)


@pytest.mark.parametrize(
    ("events", "finish"),
    [
        ([LEAVE], Finish(SIGNAL_BASE + 15, "stopped before it entered the job")),
        ([LeaseLost()], Finish(REQUEUE, "the lease ended before the agent had entered", again=True)),
        # An agent that slept learns both at once; on the old lease it would try to enter for ever.
        (
            [LeaseLost(), LeaseGranted(0xB)],
            Finish(REQUEUE, "the lease ended before the agent had entered", again=True),
        ),
    ],
)
def test_what_ends_a_life_before_it_entered(events, finish):
    assert only(Bench(Member, identity()).tell(*events), Finish) == finish


def test_after_the_end_nothing_is_decided_any_more():
    bench = Bench(Member, identity())
    bench.tell(LEAVE)
    assert bench.tell(Tick(), KeeperReady(1)).effects == ()


# Joining ---------------------------------------------------------------------------------------------------


def test_a_join_names_the_port_and_compares_attempt_registration_and_round():
    bench = member()
    commit = only(bench.tell(PortReserved(0, 29501)), Commit)
    (txn,) = commit.txns
    assert txn.when == (*guard(bench), at_round(bench))
    put = puts(commit)[KEYS.join(0, "a")]
    assert put.lease == 0xA
    assert decode(Join, "", put.value) == Join("a", "a-1", "10.0.0.a", 29501, {"marks": {"joined_utc": UTC}})


@pytest.mark.parametrize(("at_s", "joins"), [(99.9, 1), (100.0, 0), (101.0, 0)])
def test_it_joins_only_while_its_deadline_is_ahead(at_s, joins):
    bench = member(renewed=LATE)
    assert len(all_of(bench.tell(PortReserved(0, 29500), at_s=at_s), Commit)) == joins
    if not joins:
        assert len(all_of(bench.tell(Renewed(at_s, at_s + 4)), Commit)) == 1


def test_it_joins_once():
    bench = member()
    bench.settle(PortReserved(0, 29500))
    assert bench.tell(Tick()).effects == ()
    assert KEYS.join(0, "a") in bench.etcd.held


def test_a_spare_joins_the_next_round_before_it_begins():
    bench = member(number=3)
    bench.settle(PortReserved(3, 29500))
    bench.etcd.put(KEYS.round, Round(3, Phase.RUNNING, UTC, token="t"))
    bench.settle(PortReserved(4, 29501))
    assert KEYS.join(4, "a") in bench.etcd.held
    assert not all_of(bench.last, StartRanks)


# Starting --------------------------------------------------------------------------------------------------


def test_it_starts_what_it_was_assigned_once():
    bench = running()
    assert only(bench.last, StartRanks) == StartRanks(assignment(), 1)
    assert bench.tell(Tick()).effects == ()


@pytest.mark.parametrize(("at_s", "starts"), [(99.9, 1), (100.0, 0), (1e6, 0)])
def test_nothing_starts_at_or_after_the_deadline(at_s, starts):
    bench = member(renewed=LATE)
    bench.settle(PortReserved(0, 29500), at_s=99.0)
    run_round(bench)
    assert len(all_of(bench.tell(at_s=at_s), StartRanks)) == starts


def test_it_starts_with_the_keeper_that_is_there():
    bench = member()
    bench.settle(PortReserved(0, 29500), KeeperLost(1))
    run_round(bench)
    assert not all_of(bench.tell(), StartRanks)
    assert only(bench.tell(KeeperReady(2)), StartRanks).generation == 2


def test_an_old_keepers_death_does_not_take_the_new_one():
    bench = member()
    bench.settle(PortReserved(0, 29500), KeeperReady(2), KeeperLost(1))
    run_round(bench)
    assert only(bench.tell(), StartRanks).generation == 2


def test_an_assignment_of_another_incarnation_is_nobodys():
    bench = member()
    bench.settle(PortReserved(0, 29500))
    run_round(bench, incarnation="a-0")
    assert not all_of(bench.tell(), StartRanks)
    assert "spare" in bench.last.reason


def test_a_round_that_was_interrupted_before_it_started_is_only_reported():
    bench = member()
    bench.settle(PortReserved(0, 29500))
    run_round(bench)
    interrupted(bench)
    effects = bench.settle(PortReserved(1, 29501))
    assert not all_of(effects, StartRanks)
    report = reported(bench)
    assert (report.ends, report.kind, report.unfit) == ((), None, False)
    assert report.join.incarnation == "a-1"


# Faults of its own -----------------------------------------------------------------------------------------


def test_a_failed_rank_stops_the_others_and_interrupts_in_one_decision():
    bench = running()
    decision = bench.tell(RankEnded(0, FAILED_RANK))
    assert only(decision, StopRanks) == StopRanks(
        0, grace=True, reason="rank 1 on a (host host-a) was killed by SIGKILL by someone else"
    )
    (txn,) = only(decision, Commit).txns
    assert txn.when == (*guard(bench), at_round(bench), CreatedAt(KEYS.interrupt(0), 0))
    interrupt = decode(Interrupt, "", txn.then[0].value)
    assert (interrupt.by, interrupt.node_id, interrupt.kind, interrupt.rank) == (
        "a",
        "a",
        FaultKind.SIGNAL,
        1,
    )
    assert [one.notice for one in all_of(decision, Notify)] == [RankFailed(0, FAILED_RANK, "a (host host-a)")]
    assert ReservePort(1) in decision.effects, "the next round's port is reserved while ranks die"


def test_stopping_never_waits_for_a_commit():
    """The commit of `done` hangs when the round is interrupted: the ranks are killed all the same."""
    bench = running()
    bench.blind(RankEnded(0, FAILED_RANK))
    assert only(bench.last, StopRanks)
    assert only(bench.last, Commit).tag == "interrupt"
    assert bench.blind(RankEnded(0, rank_end(0, FaultKind.EXCEPTION))).effects == ()


def test_who_was_second_to_interrupt_goes_on_with_the_first():
    bench = running()
    commit = only(bench.tell(RankEnded(0, FAILED_RANK)), Commit)
    interrupted(bench)
    assert isinstance(bench.outcome(commit), Refused)
    decision = bench.tell(Refused("interrupt"))
    assert [type(effect) for effect in decision.effects] == [Notify]
    assert bench.last.reason == "ranks are being stopped"


@pytest.mark.parametrize(
    ("end", "kind", "words", "rank"),
    [
        (
            rank_end(0, FaultKind.EXCEPTION),
            FaultKind.EXCEPTION,
            "rank 0 on a (host host-a) exited with code 1",
            0,
        ),
        (
            rank_end(0, FaultKind.FENCED, exit_code=None, signal=9, by=EndedBy.US),
            FaultKind.FENCED,
            "node a (host host-a) stopped its ranks, since it could not renew its lease in time",
            None,
        ),
        (
            rank_end(0, FaultKind.KEEPER_LOST, exit_code=None, by=EndedBy.US, detail="its keeper is gone"),
            FaultKind.KEEPER_LOST,
            "node a (host host-a) lost the keeper of its ranks: its keeper is gone",
            None,
        ),
        (
            rank_end(0, FaultKind.START_FAILED, exit_code=None, detail="No such file: x (exec)"),
            FaultKind.START_FAILED,
            "rank 0 on a (host host-a) could not be started: No such file: x (exec)",
            0,
        ),
    ],
)
def test_what_an_interrupt_says(end, kind, words, rank):
    bench = running()
    commit = only(bench.tell(RanksGone(0, (end, STOPPED[1]))), Commit)
    interrupt = decode(Interrupt, "", puts(commit)[KEYS.interrupt(0)].value)
    assert (interrupt.kind, interrupt.rank) == (kind, rank)
    assert interrupt.reason == words


def test_the_keepers_death_ends_the_round_and_the_report_waits_until_its_ranks_are_gone():
    bench = running()
    bench.settle(KeeperLost(1), PortReserved(1, 29501))
    interrupt = decode(Interrupt, "", bench.etcd.held[KEYS.interrupt(0)].value)
    assert interrupt.kind is FaultKind.KEEPER_LOST
    assert KEYS.fault(0, "a") not in bench.etcd.held
    bench.settle(RanksGone(0, STOPPED))
    assert decode(Fault, "", bench.etcd.held[KEYS.fault(0, "a")].value).kind is FaultKind.KEEPER_LOST


def test_ranks_that_vanish_without_a_fault_are_a_failed_start():
    bench = running()
    commit = only(bench.tell(RanksGone(0, (rank_end(0),))), Commit)
    assert commit.tag == "interrupt"
    assert b"start_failed" in puts(commit)[KEYS.interrupt(0)].value


# Reports ---------------------------------------------------------------------------------------------------


def test_the_report_waits_for_the_ranks_then_joins_the_next_round_in_the_same_step():
    bench = running()
    interrupted(bench)
    decision = bench.tell(PortReserved(1, 29501))
    assert only(decision, StopRanks) == StopRanks(0, grace=True, reason="because")
    assert not all_of(decision, Commit)
    assert not all_of(bench.tell(RankEnded(0, STOPPED[0])), Commit), "one is gone, the other is not"
    commit = only(bench.tell(RanksGone(0, STOPPED)), Commit)
    (txn,) = commit.txns
    assert txn.when == (*guard(bench), at_round(bench), Exists(KEYS.interrupt(0)))
    assert set(puts(commit)) == {KEYS.fault(0, "a")}, "one key is one message to the coordinator"
    report = decode(Fault, "", puts(commit)[KEYS.fault(0, "a")].value)
    assert report.ends == STOPPED
    assert puts(commit)[KEYS.fault(0, "a")].lease == 0
    assert (report.join.node_id, report.join.incarnation, report.join.master_port) == ("a", "a-1", 29501)


def test_a_report_waits_for_the_port_and_a_renewal_it_joins_with():
    bench = running(renewed=Renewed(90.0, 200.0))
    interrupted(bench)
    bench.tell()
    assert not all_of(bench.tell(RanksGone(0, STOPPED)), Commit)
    assert not all_of(bench.tell(PortReserved(1, 29501), at_s=200.0), Commit)
    assert len(all_of(bench.tell(Renewed(200.0, 204.0)), Commit)) == 1


def test_a_process_that_outlives_sigkill_makes_the_node_unfit():
    bench = running()
    interrupted(bench)
    bench.settle(PortReserved(1, 29501), RanksGone(0, STOPPED, unkillable=(1,)))
    assert reported(bench).unfit
    assert reported(bench).join is None
    bench.etcd.put(KEYS.round, Round(1, Phase.FORMING, UTC, previous_token="t"))
    assert bench.settle() == []
    assert "unfit" in bench.last.reason
    finish = only(bench.tell(another_holds_key(bench)), Finish)
    assert not finish.again, "another life would join beside the process that still lives"


def test_after_its_report_it_does_not_start_the_round_again():
    bench = running()
    interrupted(bench)
    bench.settle(PortReserved(1, 29501), RanksGone(0, STOPPED))
    assert bench.tell(Tick()).effects == ()
    assert bench.last.reason.startswith("reported on round 0")


def test_the_next_round_is_started_after_the_report():
    bench = running()
    interrupted(bench)
    bench.settle(PortReserved(1, 29501), RanksGone(0, STOPPED))
    bench.etcd.put(KEYS.round, Round(1, Phase.FORMING, UTC, previous_token="t"))
    assert all_of(bench.settle(), Commit) == [], "it has joined with its report"
    run_round(bench, 1, token="t2")
    assert only(bench.tell(), StartRanks).assignment.round == 1


def test_a_report_that_is_answered_after_the_next_round_was_seen_does_not_start_that_twice():
    bench = running()
    interrupted(bench)
    bench.tell(PortReserved(1, 29501))
    commit = only(bench.tell(RanksGone(0, STOPPED)), Commit)
    answer = bench.outcome(commit)
    run_round(bench, 1, token="t2")
    assert only(bench.tell(), StartRanks).assignment.round == 1
    assert all_of(bench.tell(answer), StartRanks) == [], "a second order is refused, its ranks are forgotten"
    interrupted(bench, 1)
    assert only(bench.tell(), StopRanks).round == 1


def test_a_round_that_keeps_the_seal_is_started_with_its_own_store_and_limits_and_nothing_is_read_anew():
    bench = running()
    before = bench.machine.scopes()
    interrupted(bench)
    bench.settle(PortReserved(1, 29501), RanksGone(0, STOPPED))
    bench.etcd.put(KEYS.round, Round(1, Phase.FORMING, UTC, previous_token="t", sealed_in=0))
    bench.settle()
    again = Round(1, Phase.RUNNING, UTC, token="t", previous_token="t", sealed_in=0, world_size=4, nodes=2)
    limits = {"limits": {"step": 3.0}}
    bench.etcd.put(KEYS.round, replace(again, master_address="10.0.0.b", master_port=41, extra=limits))
    started = only(bench.tell(), StartRanks).assignment
    assert started == replace(assignment(), round=1, master_address="10.0.0.b", master_port=41, extra=limits)
    assert bench.machine.scopes() == before


def test_a_round_that_went_on_without_this_agent_kills_its_ranks_before_it_joins():
    bench = running()
    bench.etcd.put(KEYS.round, Round(1, Phase.FORMING, UTC))
    decision = bench.tell(PortReserved(1, 29501))
    assert only(decision, StopRanks).grace is False
    assert not all_of(decision, Commit)
    bench.settle(RanksGone(0, STOPPED))
    assert KEYS.join(1, "a") in bench.etcd.held


def test_a_report_tells_when_what_happened_counted_back_from_its_own_moment():
    bench = running()
    bench.settle(PortReserved(1, 29501))
    started_s = bench.now_s
    bench.now_s += 5.0
    bench.settle(RankEnded(0, rank_end(0, kind=FaultKind.EXCEPTION, exit_code=1)))
    bench.now_s += 2.0
    ends = (rank_end(0, kind=FaultKind.EXCEPTION, exit_code=1), STOPPED[1])
    bench.settle(RanksGone(0, ends, marks={Mark.STARTED: started_s + 0.5}))
    marks = decode(Fault, "", bench.etcd.held[KEYS.fault(0, "a")].value).extra["marks"]
    assert marks == {
        "released_utc": earlier(UTC, 7.0),
        "started_utc": earlier(UTC, 6.5),
        **dict.fromkeys(("fault_utc", "told_utc", "stopping_utc"), earlier(UTC, 2.0)),
        "gone_utc": UTC,
        "reported_utc": UTC,
    }


# Finishing -------------------------------------------------------------------------------------------------


def test_done_is_written_when_all_ranks_are_gone_well_and_only_once():
    bench = running()
    assert not all_of(bench.tell(RankEnded(0, GOOD_ENDS[0])), Commit)
    commit = only(bench.tell(RanksGone(0, GOOD_ENDS)), Commit)
    assert commit.txns[0].when == (*guard(bench), at_round(bench))
    assert decode(Done, "", puts(commit)[KEYS.done(0, "a")].value) == Done(
        "a", "a-1", {"marks": {"released_utc": UTC, "gone_utc": UTC, "reported_utc": UTC}}
    )
    assert bench.tell(bench.outcome(commit)).effects == ()


def test_a_finished_member_reports_and_joins_when_the_round_is_interrupted_after_all():
    bench = running()
    bench.settle(RanksGone(0, GOOD_ENDS))
    interrupted(bench)
    bench.settle()
    bench.settle(PortReserved(1, 29501))
    assert reported(bench).join.master_port == 29501


def test_the_outcome_ends_the_agent_with_its_code():
    bench = running()
    bench.settle(RanksGone(0, GOOD_ENDS))
    bench.etcd.put(
        KEYS.outcome,
        outcome(0, "all ranks finished"),
    )
    assert only(bench.tell(), Finish) == Finish(0, "all ranks finished")


# Ends of a life --------------------------------------------------------------------------------------------


def another_holds_key(bench):
    bench.etcd.delete(KEYS.node("a"))
    bench.etcd.put(KEYS.node("a"), node("a", "a-2"))
    return Tick()


def test_when_its_node_id_is_anothers_it_kills_its_ranks_then_begins_anew():
    bench = running()
    decision = bench.tell(another_holds_key(bench))
    assert only(decision, StopRanks).grace is False
    assert not all_of(decision, Finish)
    finish = only(bench.tell(RanksGone(0, STOPPED)), Finish)
    assert (finish.exit_code, finish.again) == (REQUEUE, True)


def lose_lease(bench):
    """Its lease runs out in etcd, and all keys on it."""
    for key in [key for key, held in bench.etcd.held.items() if held.lease]:
        bench.etcd.delete(key)
    return LeaseLost()


def test_without_a_lease_its_ranks_run_on_until_t_and_nothing_is_written():
    bench = running()
    assert bench.tell(lose_lease(bench)).effects == ()
    failed = bench.tell(RankEnded(0, FAILED_RANK))
    assert len(all_of(failed, StopRanks)) == 1, "what happens here is acted upon all the same"
    assert not all_of(failed, Commit)


def test_with_a_new_lease_the_same_incarnation_registers_again_and_its_ranks_go_on():
    bench = running()
    bench.tell(lose_lease(bench))
    effects = bench.settle(LeaseGranted(0xB))
    (again,) = all_of(effects, Commit)
    assert again.tag == "again"
    assert CreatedAt(KEYS.node("a"), 0) in again.txns[0].when
    held = bench.etcd.held[KEYS.node("a")]
    back = decode(Node, "", held.value)
    assert (held.lease, back.incarnation, back.extra["alive"]) == (0xB, "a-1", {"round": 0, "ranks": 2})
    assert all_of(effects, Rely) == [Rely(0xB)]
    assert all_of(effects, Campaign) == [Campaign(KEYS.election(0xB), held.create_revision)]
    assert not all_of(effects, StopRanks)
    assert bench.machine.living == 0


def test_nothing_is_started_before_the_new_lease_holds_the_registration():
    bench = member()
    bench.settle(PortReserved(0, 29500))
    bench.tell(lose_lease(bench))
    run_round(bench)
    granted = bench.tell(LeaseGranted(0xB))
    assert not all_of(granted, StartRanks)
    assert not all_of(granted, Rely)
    effects = bench.settle(bench.outcome(only(granted, Commit)))
    assert len(all_of(effects, StartRanks)) == 1


def test_a_registration_whose_answer_was_lost_is_taken_as_it_is():
    bench = running()
    bench.tell(lose_lease(bench))
    again = only(bench.tell(LeaseGranted(0xB)), Commit)
    bench.outcome(again)
    effects = bench.settle(Refused("again"))
    assert not all_of(effects, Commit)
    assert all_of(effects, Rely) == [Rely(0xB)]


def test_what_it_had_joined_is_joined_again_on_the_new_lease():
    bench = member()
    bench.settle(PortReserved(0, 29500))
    bench.tell(lose_lease(bench))
    assert KEYS.join(0, "a") not in bench.etcd.held
    bench.settle(LeaseGranted(0xB))
    assert bench.etcd.held[KEYS.join(0, "a")].lease == 0xB


def test_without_etcd_beyond_the_limit_it_asks_for_a_requeue():
    bench = running(renewed=Renewed(99.0, 101.0))
    at_s = 99.0 + SPEC.outage_limit_s + RETURN_LIMIT_S
    assert not all_of(bench.tell(at_s=at_s - 0.1), StopRanks)
    assert bench.last.wake_at_s == at_s
    assert only(bench.tell(at_s=at_s), StopRanks).grace is False
    finish = only(bench.tell(RanksGone(0, STOPPED)), Finish)
    assert (finish.exit_code, finish.again) == (REQUEUE, False)


def test_a_superseded_agent_kills_its_ranks_and_asks_for_a_requeue():
    bench = running()
    bench.etcd.put(current("job"), Current(1, UTC))
    assert only(bench.tell(), StopRanks).grace is False
    finish = only(bench.tell(RanksGone(0, STOPPED)), Finish)
    assert (finish.exit_code, finish.again) == (REQUEUE, False)


def test_an_outcome_kills_what_still_runs_first():
    bench = running()
    bench.etcd.put(
        KEYS.outcome,
        outcome(1, "too many restarts"),
    )
    assert only(bench.tell(), StopRanks).grace is False
    assert only(bench.tell(RanksGone(0, STOPPED)), Finish).exit_code == 1


def test_a_stop_with_grace_may_be_followed_by_a_kill_but_not_by_another_stop():
    bench = running()
    interrupted(bench)
    assert only(bench.tell(), StopRanks).grace is True
    assert bench.tell(Tick()).effects == ()
    assert only(bench.tell(another_holds_key(bench)), StopRanks).grace is False
    assert bench.tell(Tick()).effects == ()


# Leaving ---------------------------------------------------------------------------------------------------


def test_leaving_interrupts_reports_and_deletes_its_keys_in_this_order():
    bench = running()
    effects = bench.settle(LEAVE)
    assert [commit.tag for commit in all_of(effects, Commit)] == ["interrupt"]
    assert all_of(effects, StopRanks)[0].grace is True
    interrupt = decode(Interrupt, "", bench.etcd.held[KEYS.interrupt(0)].value)
    assert interrupt.kind is FaultKind.NODE_LEFT
    own = bench.etcd.held[KEYS.node("a")].create_revision
    effects = bench.settle(RanksGone(0, STOPPED))
    commits = {commit.tag: commit for commit in all_of(effects, Commit)}
    assert list(commits) == ["report", "leave", "last"]
    report = decode(Fault, "", bench.etcd.held[KEYS.fault(0, "a")].value)
    assert (report.kind, report.join) == (FaultKind.NODE_LEFT, None)
    (departure,) = commits["leave"].txns
    assert departure.when == (CreatedAt(KEYS.node("a"), own),)
    assert departure.then == (Delete(Scope(KEYS.node("a"))), Delete(Scope(KEYS.election(0xA))))
    assert all_of(effects, Finish) == [Finish(SIGNAL_BASE + 15, "told to stop by SIGTERM; others stay in it")]
    assert KEYS.outcome not in bench.etcd.held, "b is still there: the outcome is its to write"


def leave_all(bench):
    """Everything up to the last word."""
    bench.settle(LEAVE)
    bench.etcd.delete(KEYS.node("b"))
    decision = bench.tell(RanksGone(0, STOPPED))
    while (commit := only(decision, Commit)).tag != "last":
        decision = bench.tell(bench.outcome(commit))
    return commit


def test_the_last_one_out_writes_the_outcome_if_nobody_is_registered():
    bench = running()
    commit = leave_all(bench)
    (txn,) = commit.txns
    attempt = current("job")
    assert txn.when == (
        ModifiedAt(attempt, bench.etcd.held[attempt].mod_revision),
        CreatedAt(KEYS.outcome, 0),
        Empty(KEYS.nodes),
    )
    last = decode(Outcome, "", puts(commit)[KEYS.outcome].value)
    assert (last.success, last.exit_code) == (False, SIGNAL_BASE + 15)
    finish = only(bench.tell(bench.outcome(commit)), Finish)
    assert finish.exit_code == SIGNAL_BASE + 15


def test_the_last_word_does_not_mind_a_round_that_moved_on():
    bench = running()
    commit = leave_all(bench)
    bench.etcd.put(KEYS.round, Round(1, Phase.FORMING, UTC))
    assert isinstance(bench.outcome(commit), Committed)


def test_the_last_word_is_not_lost_when_the_departure_is_seen_before_it_is_answered():
    bench = member()
    bench.etcd.delete(KEYS.node("b"))
    leave = only(bench.tell(LEAVE), Commit)
    assert leave.tag == "leave"
    answer = bench.outcome(leave)
    assert all_of(bench.blind(Changed(Deleted(KEYS.node("a"), bench.etcd.revision))), Finish) == []
    last = only(bench.tell(answer), Commit)
    assert last.tag == "last"
    assert not all_of(bench.last, Finish)


def test_leaving_gives_up_on_an_etcd_that_does_not_answer():
    bench = member()
    bench.tell(LEAVE, at_s=100.0)
    assert bench.last.wake_at_s == 100.0 + LEAVE_LIMIT_S
    assert not all_of(bench.blind(Tick()), Finish)
    bench.now_s = 100.0 + LEAVE_LIMIT_S
    assert only(bench.blind(Tick()), Finish).exit_code == SIGNAL_BASE + 15


def test_a_leaving_agent_does_not_join():
    bench = member()
    bench.tell(LEAVE)
    assert all(commit.tag != "join" for commit in all_of(bench.settle(PortReserved(0, 29500)), Commit))


def test_a_finished_member_leaves_without_a_fault():
    bench = running()
    bench.settle(RanksGone(0, GOOD_ENDS))
    tags = [commit.tag for commit in all_of(bench.settle(LEAVE), Commit)]
    assert tags == ["leave", "last"]
    assert KEYS.interrupt(0) not in bench.etcd.held


def test_a_second_signal_changes_nothing_for_the_machine():
    bench = running()
    bench.tell(LEAVE)
    assert not all_of(bench.tell(LeaveRequested(signal.SIGINT)), StopRanks)
    bench.tell(another_holds_key(bench))
    finish = only(bench.tell(RanksGone(0, STOPPED)), Finish)
    assert (finish.exit_code, finish.again) == (SIGNAL_BASE + 15, False)


# Late and repeated events ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        RankEnded(7, FAILED_RANK),
        RanksGone(7, STOPPED),
        KeeperLost(0),
        Committed("join", ()),
        Refused("done"),
        PortReserved(0, 1),
        Renewed(1.0, 2.0),
        Proven("x", Proof.DEAD, ""),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_late_or_of_another_round_changes_nothing(event):
    bench = running()
    assert bench.tell(event).effects == ()
    assert bench.last.reason == "ranks are running"


def test_it_follows_a_handful_of_single_keys_and_the_few_interrupts():
    bench = running(number=3)
    assert {scope for scope in bench.machine.scopes() if scope.prefix} == {
        KEYS.interrupts,
        KEYS.worlds(3, "t"),
        KEYS.all_struck(3),
    }
    assert len(bench.machine.scopes()) <= 8


def test_the_deadline_never_goes_back():
    bench = member()
    bench.tell(Renewed(1.0, 2.0))
    assert len(all_of(bench.tell(PortReserved(0, 29500)), Commit)) == 1
