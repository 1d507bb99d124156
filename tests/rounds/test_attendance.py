"""What an agent does in rounds with its own ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from member_kit import (
    FAILED_RANK,
    GOOD_ENDS,
    STOPPED,
    another_holds_key,
    assignment,
    interrupted,
    member,
    outcome,
    run_round,
    running,
)
from rounds_kit import KEYS, UTC, all_of, only, puts, rank_end

from nvrx_async.etcd.types import CreatedAt, Exists, ModifiedAt
from nvrx_async.job.codec import decode
from nvrx_async.job.keys import current
from nvrx_async.job.records import Done, EndedBy, Fault, FaultKind, Interrupt, Join, Mark, Phase, Round
from nvrx_async.job.times import earlier
from nvrx_async.rounds.effects import Commit, Finish, Notify, RankFailed, ReservePort, StartRanks, StopRanks
from nvrx_async.rounds.events import (
    KeeperLost,
    KeeperReady,
    PortReserved,
    RankEnded,
    RanksGone,
    Refused,
    Renewed,
    Tick,
)

LATE = Renewed(90.0, 100.0)


def reported(bench, number=0):
    """What the agent under test reported on a round."""
    held = bench.etcd.held.get(KEYS.fault(number, "a"))
    return decode(Fault, "", held.value) if held else None


def guard(bench):
    """What every write of a registered member compares."""
    attempt = current("job")
    return (
        ModifiedAt(attempt, bench.etcd.held[attempt].mod_revision),
        CreatedAt(KEYS.node("a"), bench.etcd.held[KEYS.node("a")].create_revision),
    )


def at_round(bench):
    return ModifiedAt(KEYS.round, bench.etcd.held[KEYS.round].mod_revision)


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
    bench.etcd.put(KEYS.outcome, outcome(0, "all ranks finished"))
    assert only(bench.tell(), Finish) == Finish(0, "all ranks finished")
