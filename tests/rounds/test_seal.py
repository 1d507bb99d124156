"""When a forming round becomes a world."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rounds_kit import SPEC, join, node, seat, spec

from nvrx_async.job.records import Done, Fault, FaultKind
from nvrx_async.rounds.events import Now
from nvrx_async.rounds.fencing import Judge
from nvrx_async.rounds.seal import NEWCOMERS_WAIT_S, Forming, Sealed, Wait, seal, unclear

RECORDED = Judge(recorded=True, older_than_seal=True)
YOUNG = Judge(recorded=True, older_than_seal=False)
OUTSIDER = Judge(recorded=False, older_than_seal=False)
WORLD = (seat("a", 0), seat("b", 1))


def gone(at_s):
    return Now(at_s, "2026-01-31T10:00:05.250Z")


def forming(joined="", previous=(), number=0, since_s=0.0, nodes=None, **changes):
    """Everybody who joined is registered too."""
    names = list(joined)
    made = Forming(
        number=number,
        since_s=since_s,
        joins={name: join(name) for name in names},
        nodes={name: node(name) for name in names} if nodes is None else nodes,
        registered={name: place for place, name in enumerate(names, 1)},
        previous=previous,
        reports={},
        done={},
        missing_since={one.node_id: gone(10.0) for one in previous},
    )
    return replace(made, **changes)


def report(name, incarnation="", **changes):
    return replace(Fault(name, incarnation or f"{name}-1", f"host-{name}", ()), **changes)


def test_enough_nodes_make_a_world():
    result = seal(0.0, forming("ab"), RECORDED, SPEC)
    assert isinstance(result, Sealed)
    assert [one.node_id for one in result.seats] == ["a", "b"]
    assert result.master.node_id == "a"
    assert (result.spares, result.absent) == ((), ())
    assert result.reason == "2 nodes, world size 4"


def test_too_few_nodes_are_waited_for_until_the_join_timeout():
    result = seal(10.0, forming("a"), RECORDED, SPEC)
    assert result == Wait("1 of 2 nodes joined; here: a", 600.0)
    assert seal(599.9, forming("a"), RECORDED, SPEC).expired is False
    assert seal(600.0, forming("a"), RECORDED, SPEC).expired is True


def test_the_last_call_waits_for_more_in_round_0_only():
    wide = spec(min_nodes=1, max_nodes=3)
    waiting = seal(29.9, forming("ab"), RECORDED, wide)
    assert waiting == Wait("2 nodes joined, more may come (up to 3)", 30.0)
    assert isinstance(seal(30.0, forming("ab"), RECORDED, wide), Sealed)
    assert isinstance(seal(0.0, forming("abc"), RECORDED, wide), Sealed), "full: nobody is waited for"
    later = forming("a", previous=WORLD[:1], number=1, reports={"a": report("a")})
    assert isinstance(seal(0.1, later, RECORDED, wide), Sealed)


def test_more_than_max_nodes_are_spares():
    result = seal(0.0, forming("abc"), RECORDED, SPEC)
    assert [one.node_id for one in result.spares] == ["c"]
    assert result.spares[0].incarnation == "c-1"
    assert "1 spare" in result.reason


@pytest.mark.parametrize(
    "nodes",
    [{"a": node("a")}, {"a": node("a"), "b": node("b", "b-2")}],
    ids=["registration gone", "another incarnation"],
)
def test_a_join_counts_only_while_its_incarnation_is_registered(nodes):
    result = seal(0.0, forming("ab", nodes=nodes), RECORDED, SPEC)
    assert isinstance(result, Wait)
    assert "1 of 2" in result.reason


# Members of the world before -------------------------------------------------------------------------------


def next_round(joined="", **changes):
    return forming(joined, previous=WORLD, number=1, **changes)


def test_a_member_that_has_not_reported_still_stops_its_ranks():
    state = next_round("a", nodes={"a": node("a"), "b": node("b")})
    assert unclear(0.0, WORLD, state, RECORDED, SPEC) == Wait("b still stops its ranks")
    assert seal(10_000.0, state, RECORDED, SPEC).reason == "b still stops its ranks", "no time-out helps"


@pytest.mark.parametrize(
    "changes",
    [
        {"reports": {"b": report("b")}},
        {"done": {"b": Done("b", "b-1")}},
    ],
)
def test_a_member_that_reported_or_finished_is_clear_but_waited_for_until_it_joins(changes):
    state = next_round("a", nodes={"a": node("a"), "b": node("b")}, **changes)
    assert unclear(0.0, WORLD, state, RECORDED, SPEC) is None
    assert seal(0.0, state, RECORDED, spec(min_nodes=1)) == Wait("b still to join", 600.0)


def test_a_join_clears_a_member_too():
    assert unclear(0.0, WORLD, next_round("ab"), OUTSIDER, SPEC) is None


@pytest.mark.parametrize("record", ["reports", "done", "joins"])
def test_what_another_incarnation_says_clears_nobody(record):
    other = {"reports": report("b", "b-2"), "done": Done("b", "b-2"), "joins": join("b", "b-2")}[record]
    state = next_round("a", nodes={"a": node("a"), "b": node("b")})
    state = replace(state, **{record: {**getattr(state, record), "b": other}})
    assert unclear(0.0, WORLD, state, RECORDED, SPEC) == Wait("b still stops its ranks")


@pytest.mark.parametrize("why", [{"unfit": True}, {"kind": FaultKind.NODE_LEFT}])
def test_a_member_that_will_not_come_is_not_waited_for(why):
    state = next_round(
        "a",
        nodes={"a": node("a"), "b": node("b")},
        reports={"a": report("a"), "b": report("b", **why)},
    )
    result = seal(0.0, state, RECORDED, spec(min_nodes=1))
    assert isinstance(result, Sealed)
    assert [one.node_id for one in result.seats] == ["a"]
    assert result.absent == (), "it is registered: nothing was concluded from its absence"


def test_a_spare_takes_the_seat_of_a_node_that_is_unfit():
    state = next_round("ac", reports={"a": report("a"), "b": report("b", unfit=True)})
    result = seal(0.0, state, RECORDED, SPEC)
    assert isinstance(result, Sealed)
    assert {seat.node_id: seat.group_rank for seat in result.seats} == {
        "a": WORLD[0].group_rank,
        "c": WORLD[1].group_rank,
    }
    assert result.spares == (), "an unfit node does not wait either"


def test_a_late_member_is_left_out_after_the_join_timeout():
    state = next_round("a", nodes={"a": node("a"), "b": node("b")}, reports={"b": report("b")})
    assert isinstance(seal(599.9, state, RECORDED, spec(min_nodes=1)), Wait)
    assert isinstance(seal(600.0, state, RECORDED, spec(min_nodes=1)), Sealed)
    assert seal(600.0, state, RECORDED, SPEC).expired


@pytest.mark.parametrize(
    ("judge", "nodes", "at_s"),
    [
        (RECORDED, {"a": node("a")}, 10.0),
        (YOUNG, {"a": node("a")}, 21.0),
        (OUTSIDER, {"a": node("a")}, 141.0),
        (OUTSIDER, {"a": node("a"), "b": node("b", "b-2", succeeds="b-1")}, 10.0),
        (YOUNG, {"a": node("a"), "b": node("b", "b-2")}, 21.0),
    ],
    ids=[
        "saw its lease end",
        "time",
        "time of an outsider",
        "proven dead",
        "another incarnation proves nothing",
    ],
)
def test_a_lost_member_is_waited_out_until_it_is_fenced(judge, nodes, at_s):
    state = next_round("a", nodes=nodes)
    if at_s > 10.0:
        waiting = unclear(at_s - 0.01, WORLD, state, judge, SPEC)
        assert waiting.until_s == at_s
        assert waiting.reason.startswith("not before b has been missing")
    assert unclear(at_s, WORLD, state, judge, SPEC) is None
    result = seal(at_s, state, judge, spec(min_nodes=1))
    assert isinstance(result, Sealed)
    assert result.absent == ("b",), "the commit must compare that it still is"


def test_the_longest_wait_is_told_and_one_without_an_end_before_all():
    state = next_round("", nodes={}, missing_since={"a": gone(5.0), "b": gone(9.0)})
    assert unclear(6.0, WORLD, state, YOUNG, SPEC).until_s == 20.0
    state = replace(state, nodes={"a": node("a")})
    assert unclear(6.0, WORLD, state, YOUNG, SPEC) == Wait("a still stops its ranks")


def test_a_lost_member_that_finished_need_not_be_fenced():
    state = next_round("a", nodes={"a": node("a")}, done={"b": Done("b", "b-1")})
    assert unclear(0.0, WORLD, state, OUTSIDER, SPEC) is None


def test_who_is_missing_is_named_when_too_few_come():
    state = next_round("a", nodes={"a": node("a")})
    assert seal(10.0, state, RECORDED, SPEC).reason == "1 of 2 nodes joined; missing: b (gone since 10:00:05)"


def test_a_newcomer_that_does_not_fit_is_named_when_too_few_come():
    nodes = {"a": node("a"), "x": node("x", slots=4)}
    world = (seat("b", 0), seat("a", 1))
    state = forming("ax", number=1, nodes=nodes, previous=world, missing_since={"b": gone(0.0)})
    result = seal(10.0, state, RECORDED, SPEC)
    assert result.reason == "1 of 2 nodes joined; group rank 0 needs a node with 2 slots (x has 4)"


def test_many_names_are_shortened():
    previous = tuple(seat(f"n{i}", i) for i in range(12))
    nodes = {one.node_id: node(one.node_id) for one in previous}
    reports = {one.node_id: report(one.node_id) for one in previous}
    state = forming(number=1, previous=previous, nodes=nodes, reports=reports)
    assert seal(0.0, state, RECORDED, SPEC).reason.endswith("n7 and 4 more still to join")


def test_survivors_keep_their_places():
    state = forming(
        "xba",
        previous=WORLD,
        number=1,
        nodes={name: node(name) for name in "xba"},
        registered={"x": 1, "b": 2, "a": 3},
    )
    result = seal(0.0, state, RECORDED, SPEC)
    assert [one.node_id for one in result.seats] == ["a", "b"]
    assert result.master.node_id == "a"


def test_a_registered_newcomer_is_waited_for_briefly_where_there_is_room():
    nodes = {"a": node("a"), "b": node("b", "b-2", succeeds="b-1")}
    state = replace(next_round("a"), nodes=nodes, missing_since={"b": gone(0.0)})
    assert seal(0.5, state, RECORDED, spec(min_nodes=1)) == Wait("b still to join", NEWCOMERS_WAIT_S)
    assert isinstance(seal(NEWCOMERS_WAIT_S, state, RECORDED, spec(min_nodes=1)), Sealed)
    full = replace(next_round("ab"), nodes={name: node(name) for name in "abc"})
    assert isinstance(seal(0.0, full, RECORDED, SPEC), Sealed)
