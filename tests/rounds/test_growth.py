"""When nodes that wait are taken in while a round runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_kit import KEYS, UTC, Bench, all_of, identity, join, node, opened, rank_end, sealed, seat, spec

from nvrx_async.job.codec import decode
from nvrx_async.job.records import (
    Done,
    Exclusion,
    Fault,
    FaultKind,
    Grow,
    Interrupt,
    Level,
    Phase,
    Policy,
    Purpose,
    Round,
    Spare,
    Stop,
    StopVote,
    WorldShard,
)
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Notify
from nvrx_async.rounds.events import Elected, Tick
from nvrx_async.rounds.growth import GrowLater, growth, waiting
from nvrx_async.rounds.stop_state import stop_in
from nvrx_async.rounds.world import seal_of

SEATS = (seat("a", 0), seat("b", 1))
OFFICE = KEYS.election(0xA)


def of(grow=Grow.NOW, most=3, pause_s=30.0, **changes):
    return spec(min_nodes=1, max_nodes=most, policy=Policy(grow=grow, grow_pause_s=pause_s), **changes)


@pytest.mark.parametrize(
    ("policy", "free", "now_s", "allowed", "expected"),
    [
        (of(), "", 99.0, False, None),
        (of(most=2), "c", 99.0, False, None),
        (of(), "c", 30.0, False, "the job grows by c"),
        (of(), "cd", 30.0, False, "the job grows by c"),
        (of(most=4), "cd", 30.0, False, "the job grows by c, d"),
        (of(), "c", 29.9, False, 30.0),
        (of(), "c", 29.9, True, "the job grows by c"),
        (of(Grow.AT_FAULT), "c", 99.0, True, GrowLater),
        (of(Grow.WHEN_ASKED), "c", 99.0, False, GrowLater),
        (of(Grow.WHEN_ASKED), "c", 0.0, True, "the job grows by c"),
    ],
)
def test_when_a_round_ends_for_growth(policy, free, now_s, allowed, expected):
    step = growth(now_s, 0.0, SEATS, tuple(free), policy, allowed=allowed)
    if isinstance(expected, str):
        assert step == Stop("policy", expected, purpose=Purpose.RENEW)
    elif isinstance(expected, float):
        assert isinstance(step, GrowLater)
        assert step.at_s == expected
    elif expected is None:
        assert step is None
    else:
        assert isinstance(step, expected)
        assert step.at_s is None


def test_who_waits():
    nodes = {name: node(name) for name in "abcd"} | {"e": node("e", "e-2")}
    joins = {name: join(name) for name in "acdefz"}
    assert waiting(joins, nodes, SEATS, {"d": Exclusion("d", "", "", "")}) == ("c",)


@given(st.sampled_from(Grow), st.integers(2, 5), st.integers(0, 3), st.floats(0, 100), st.booleans())
def test_a_round_with_all_its_nodes_is_never_ended(grow, most, free, now_s, allowed):
    step = growth(now_s, 0.0, SEATS, tuple("cdef"[:free]), of(grow, most), allowed=allowed)
    if most <= len(SEATS) or not free:
        assert step is None
    if isinstance(step, Stop):
        assert grow is not Grow.AT_FAULT
        assert allowed or (grow is Grow.NOW and now_s >= 30.0)


# By a coordinator -----------------------------------------------------------------------------------------------


def leader(policy, registered="abc", world=SEATS):
    bench = Bench(Coordinator, identity(), policy)
    for name in registered:
        bench.etcd.put(KEYS.node(name), node(name), lease=1)
    sealed(bench.etcd, world, 0)
    opened(bench.etcd, Phase.RUNNING, 0, policy, token="t")
    for name in registered:
        if name not in {one.node_id for one in world}:
            bench.etcd.put(KEYS.join(1, name), join(name))
    bench.etcd.put(OFFICE, Spare("", "a-1"), lease=1)
    bench.tell(Elected(OFFICE, bench.etcd.held[OFFICE].create_revision))
    return bench


def read(bench, cls, key):
    return decode(cls, key, bench.etcd.held[key].value)


def now_round(bench):
    return read(bench, Round, KEYS.round)


def world(bench):
    return read(bench, WorldShard, KEYS.world(*seal_of(now_round(bench)), 0))


def test_a_round_grows_after_its_pause_at_an_agreed_step():
    bench = leader(of())
    assert "taken in once this round has run for 30 s" in all_of(bench.last, Notify)[0].notice.sentence
    assert bench.last.wake_at_s == bench.now_s + 30.0
    bench.settle(Tick(), at_s=bench.now_s + 30.0)
    assert stop_in(now_round(bench).extra).reason == "the job grows by c"
    for name in "ab":
        bench.etcd.put(KEYS.stop_vote(0, name), StopVote(name, f"{name}-1", 4))
    bench.settle(Tick())
    for name in "ab":
        bench.etcd.put(KEYS.done(0, name), Done(name, f"{name}-1"))
    bench.settle(Tick(), rounds=2)
    for name in "ab":
        bench.etcd.put(KEYS.join(1, name), join(name))
    bench.settle(Tick())
    assert [(one.node_id, one.first_rank) for one in world(bench).seats] == [("a", 0), ("b", 2), ("c", 4)]
    assert now_round(bench).verdict.root.kind is FaultKind.ASKED
    assert now_round(bench).ledger.restarts == 0


def test_a_rank_lets_them_in():
    bench = leader(of(Grow.WHEN_ASKED))
    bench.settle(Tick(), at_s=bench.now_s + 1000.0)
    assert stop_in(now_round(bench).extra) is None
    bench.etcd.put(KEYS.grow(0), Spare("a", "a-1"))
    bench.settle(Tick())
    assert stop_in(now_round(bench).extra).purpose is Purpose.RENEW


def test_at_fault_takes_them_in_with_the_next_restart():
    bench = leader(of(Grow.AT_FAULT))
    bench.settle(Tick(), at_s=bench.now_s + 1000.0)
    assert stop_in(now_round(bench).extra) is None
    fail(bench, 0)
    assert [one.node_id for one in world(bench).seats] == ["a", "b", "c"]


def fail(bench, number, blamed="b", kind=FaultKind.SIGNAL, seated="ab"):
    """The round ends by a fault of this node, and the next one is sealed."""
    first = {one.node_id: one.first_rank for one in world(bench).seats}[blamed]
    for name in "abc":
        if name not in seated and KEYS.node(name) in bench.etcd.held:  # spares join ahead
            bench.etcd.put(KEYS.join(number + 1, name), join(name))
    end = rank_end(first, kind, exit_code=None, signal=11)
    bench.etcd.put(KEYS.interrupt(number), Interrupt(blamed, kind, blamed, "why", UTC, first))
    for name in seated:
        ends = (end,) if name == blamed else ()
        bench.etcd.put(KEYS.fault(number, name), Fault(name, f"{name}-1", f"host-{name}", ends))
    bench.settle(Tick(), rounds=3)
    if KEYS.outcome in bench.etcd.held:
        return
    for name in seated:
        bench.etcd.put(KEYS.join(number + 1, name), join(name))
    bench.settle(Tick())


def test_a_node_to_blame_twice_gives_its_ranks_to_the_spare_until_a_person_lets_it_in():
    bench = leader(spec(max_restarts=10))
    fail(bench, 0)
    assert [one.node_id for one in world(bench).seats] == ["a", "b"]
    fail(bench, 1)
    assert [(one.node_id, one.first_rank) for one in world(bench).seats] == [("a", 0), ("c", 2)]
    verdict = now_round(bench).verdict
    assert verdict.level is Level.REPLACE_NODE
    assert "b is to blame for the 2nd time in 10 rounds: c takes its ranks" in verdict.reason
    assert read(bench, Exclusion, KEYS.excluded("b")).by == "policy"
    fail(bench, 2, "a", seated="ac")
    assert [one.node_id for one in world(bench).seats] == ["a", "c"]
    bench.etcd.delete(KEYS.excluded("b"))
    fail(bench, 3, "a", seated="ac")
    assert [one.node_id for one in world(bench).seats] == ["b", "c"], "now a is the one to blame twice"


def test_a_doubtful_node_is_better_than_none_but_whom_a_person_barred_stays_out():
    for by, seated in (("policy", ["a", "b"]), ("ada@desk", None)):
        bench = leader(spec(max_restarts=10), registered="ab")
        bench.etcd.put(KEYS.excluded("b"), Exclusion("b", "why", by, UTC))
        fail(bench, 0)
        running = now_round(bench)
        assert (running.phase is Phase.RUNNING) is (seated is not None)
        if seated:
            assert [one.node_id for one in world(bench).seats] == seated


def test_too_few_spares_are_told_of():
    policy = replace(spec(), policy=Policy(spares=2))
    bench = leader(policy)
    fail(bench, 0)
    told = []
    bench = Bench(Coordinator, identity(), policy)
    for name in "abc":
        bench.etcd.put(KEYS.node(name), node(name), lease=1)
        bench.etcd.put(KEYS.join(0, name), join(name))
    opened(bench.etcd, Phase.FORMING, 0, policy)
    bench.etcd.put(OFFICE, Spare("", "a-1"), lease=1)
    told = bench.settle(Elected(OFFICE, bench.etcd.held[OFFICE].create_revision))
    sentences = [one.notice.sentence for one in all_of(told, Notify)]
    assert sentences == ["for 1 more to wait as spare; there are 1 of --spares 2"]
