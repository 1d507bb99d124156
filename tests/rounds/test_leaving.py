"""How an agent leaves that was told to stop."""

from __future__ import annotations

import signal

from member_kit import GOOD_ENDS, LEAVE, STOPPED, another_holds_key, member, running
from rounds_kit import KEYS, UTC, all_of, only, puts

from nvrx_async.etcd.types import CreatedAt, Delete, Deleted, Empty, ModifiedAt, Scope
from nvrx_async.job.codec import decode
from nvrx_async.job.keys import current
from nvrx_async.job.records import Fault, FaultKind, Interrupt, Outcome, Phase, Round
from nvrx_async.rounds.effects import Commit, Finish, StopRanks
from nvrx_async.rounds.events import Changed, Committed, LeaveRequested, PortReserved, RanksGone, Tick
from nvrx_async.rounds.leaving import LEAVE_LIMIT_S, SIGNAL_BASE

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
