"""What an agent does with its own keys: how its life begins, and how it ends."""

from __future__ import annotations

import pytest
from member_kit import (
    FAILED_RANK,
    GOOD_UNTIL_S,
    LEAVE,
    STOPPED,
    another_holds_key,
    interrupted,
    member,
    outcome,
    run_round,
    running,
)
from rounds_kit import KEYS, SPEC, UTC, Bench, all_of, identity, node, only, opened, process, puts

from nvrx_async.etcd.types import CreatedAt
from nvrx_async.job.codec import decode
from nvrx_async.job.keys import current
from nvrx_async.job.records import Current, Node, Outcome
from nvrx_async.rounds.attendance import REQUEUE
from nvrx_async.rounds.effects import (
    Campaign,
    Commit,
    Finish,
    Finished,
    Notify,
    ProveDead,
    Rely,
    ReservePort,
    Revoke,
    StartRanks,
    StopRanks,
)
from nvrx_async.rounds.events import (
    Committed,
    KeeperLost,
    KeeperReady,
    LeaseGranted,
    LeaseLost,
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
from nvrx_async.rounds.leaving import SIGNAL_BASE
from nvrx_async.rounds.member import Member

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


# Ends of a life --------------------------------------------------------------------------------------------


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
    bench.etcd.put(KEYS.outcome, outcome(1, "too many restarts"))
    assert only(bench.tell(), StopRanks).grace is False
    assert only(bench.tell(RanksGone(0, STOPPED)), Finish).exit_code == 1


def test_a_stop_with_grace_may_be_followed_by_a_kill_but_not_by_another_stop():
    bench = running()
    interrupted(bench)
    assert only(bench.tell(), StopRanks).grace is True
    assert bench.tell(Tick()).effects == ()
    assert only(bench.tell(another_holds_key(bench)), StopRanks).grace is False
    assert bench.tell(Tick()).effects == ()


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
