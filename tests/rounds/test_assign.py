"""Which agent gets which ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_kit import join, node, seat

from nvrx_async.rounds.assign import Candidate, natural, place, seats


def candidate(name, since=1, **changes):
    made = node(name, **changes)
    return Candidate(made, join(name, made.incarnation), since)


def placed(candidates, previous=(), most=8):
    return [one.node.node_id for one in place(candidates, previous, most).seated]


WORLD = (seat("a", 0), seat("b", 1), seat("c", 2), seat("d", 3))


@pytest.mark.parametrize(
    ("joined", "previous", "most", "expected"),
    [
        ("ba", (), 8, "ab"),
        ("abcd", WORLD, 4, "abcd"),
        ("dcba", WORLD, 4, "abcd"),
        ("acd", WORLD, 4, "adc"),  # b is lost: the last one fills its gap, the others stay
        ("bcd", WORLD, 4, "dbc"),
        ("d", WORLD, 4, "d"),
        ("acdx", WORLD, 4, "axcd"),  # a newcomer takes the lost place
        ("xy", WORLD, 4, "xy"),
        ("abcdx", WORLD, 5, "abcdx"),
        ("cd", WORLD, 4, "cd"),
        ("bd", WORLD, 4, "db"),
    ],
)
def test_places(joined, previous, most, expected):
    order = {name: since for since, name in enumerate(joined)}
    assert placed([candidate(name, since) for name, since in order.items()], previous, most) == list(expected)


def test_survivors_go_before_newcomers_and_the_others_are_spares_in_the_order_they_came():
    candidates = [candidate("x", 1), candidate("y", 2), candidate("a", 9), candidate("b", 8)]
    places = place(candidates, WORLD[:2], 3)
    assert [one.node.node_id for one in places.seated] == ["a", "b", "x"]
    assert [one.node.node_id for one in places.spares] == ["y"]


def test_the_first_to_register_are_taken_and_stand_in_their_wished_order():
    candidates = [
        candidate("n10", 3),
        candidate("n9", 4),
        candidate("n2", 1, order=1),
        candidate("late", 9),
        candidate("n1", 2, order=0),
    ]
    assert placed(candidates, (), 4) == ["n1", "n2", "n9", "n10"]


def test_a_newcomer_takes_a_lost_place_only_with_as_many_slots():
    survivors = [candidate("a"), candidate("c")]
    previous = (seat("a", 0), seat("b", 1), seat("c", 2))
    places = place([*survivors, candidate("x", slots=4)], previous, 3)
    assert [one.node.node_id for one in places.seated] == ["a", "c"]
    assert [one.node.node_id for one in places.spares] == ["x"]
    assert "group rank 1 needs a node with 2 slots (x has 4)" in places.misfit
    fitting = [*survivors, candidate("x", 1, slots=4), candidate("y", 2, slots=2)]
    assert placed(fitting, previous, 3) == ["a", "y", "c"], "the earlier newcomer does not fit"


def test_a_new_place_takes_any_number_of_slots():
    assert placed([candidate("a"), candidate("x", slots=4)], WORLD[:1], 2) == ["a", "x"]


def test_a_restarted_agent_takes_its_own_place_again():
    again = candidate("b", since=99, incarnation="b-2")
    assert placed([candidate("x", 1), again, candidate("a", 2)], WORLD[:2], 2) == ["a", "b"]


def test_ranks_are_counted_through_nodes_of_different_size():
    made = seats([candidate("a", slots=3), candidate("b", slots=1), candidate("c", slots=2)])
    assert [(one.group_rank, one.first_rank, one.slots) for one in made] == [(0, 0, 3), (1, 3, 1), (2, 4, 2)]
    assert [one.incarnation for one in made] == ["a-1", "b-1", "c-1"]


def test_nobody_joined():
    assert place([], WORLD, 4).seated == ()


def test_natural_order():
    names = ["node-2", "node-2b", "node-10", "rack1-node3", "rack10-node1"]
    assert sorted(set(names), key=natural) == names


@given(st.data())
def test_no_rank_twice_and_no_survivor_moves_without_need(data):
    names = [f"n{i}" for i in range(8)]
    before = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
    previous, first = [], 0
    for group_rank, name in enumerate(before):
        slots = data.draw(st.integers(1, 3))
        previous.append(seat(name, group_rank, slots, first_rank=first))
        first += slots
    joined = data.draw(st.lists(st.sampled_from(names), unique=True))
    old = {one.node_id: one for one in previous}
    candidates = [
        candidate(
            name,
            data.draw(st.integers(1, 99)),
            slots=old[name].slots if name in old else data.draw(st.integers(1, 3)),
        )
        for name in joined
    ]
    most = data.draw(st.integers(1, 8))
    places = place(candidates, previous, most)
    seated = [one.node.node_id for one in places.seated]
    spares = [one.node.node_id for one in places.spares]
    assert sorted(seated + spares) == sorted(joined)
    assert len(seated) <= most
    made = seats(places.seated)
    ranks = [rank for one in made for rank in range(one.first_rank, one.first_rank + one.slots)]
    assert ranks == list(range(len(ranks)))
    for one in previous:
        if one.node_id in joined and one.group_rank < len(seated):
            assert seated[one.group_rank] == one.node_id
    assert not places.spares or len(seated) == most or places.misfit
    for one in made:
        was = next((was for was in previous if was.group_rank == one.group_rank), None)
        assert was is None or one.node_id in old or one.slots == was.slots
