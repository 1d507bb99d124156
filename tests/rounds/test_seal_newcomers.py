"""Spares and other agents without a seat must not be left out of a new round only because it forms so fast."""

from __future__ import annotations

from dataclasses import replace

from nvrx_async.job.records import JobSpec, Join, Node, Process, Seat
from nvrx_async.rounds.events import Now
from nvrx_async.rounds.fencing import Judge
from nvrx_async.rounds.seal import NEWCOMERS_WAIT_S, Forming, Sealed, Wait, seal

SPEC = JobSpec(("train.py",), 1, 2, 3, 6, 1.0, 0.0, 600.0, 30.0)
JUDGE = Judge(recorded=True, older_than_seal=True)


def node(name: str, incarnation: str = "new") -> Node:
    return Node(name, incarnation, name, "10.0.0.1", 2, Process("boot", "pid:[1]", 7, 1, "tag"), "")


def join(name: str, incarnation: str = "new") -> Join:
    return Join(name, incarnation, "10.0.0.1", 4000)


MEMBER_ALONE = Forming(
    number=3,
    since_s=100.0,
    joins={"a": join("a")},
    nodes={"a": node("a"), "b": node("b")},
    registered={"a": 1, "b": 2},
    previous=[Seat("a", "new", "a", 0, 0, 2)],
    reports={},
    done={},
    missing_since={},
)


def test_a_registered_spare_is_waited_for_while_there_is_room() -> None:
    assert seal(100.0, MEMBER_ALONE, JUDGE, SPEC) == Wait("b still to join", 100.0 + NEWCOMERS_WAIT_S)


def test_a_spare_that_joined_is_seated() -> None:
    world = seal(100.0, replace(MEMBER_ALONE, joins={"a": join("a"), "b": join("b")}), JUDGE, SPEC)
    assert isinstance(world, Sealed)
    assert [seat.node_id for seat in world.seats] == ["a", "b"]


def test_a_spare_that_does_not_come_holds_nobody_up_for_long() -> None:
    world = seal(100.0 + NEWCOMERS_WAIT_S, MEMBER_ALONE, JUDGE, SPEC)
    assert isinstance(world, Sealed)
    assert [seat.node_id for seat in world.seats] == ["a"]


def test_nobody_is_waited_for_where_there_is_no_room() -> None:
    assert isinstance(seal(100.0, MEMBER_ALONE, JUDGE, replace(SPEC, max_nodes=1)), Sealed)


def test_the_successor_of_a_member_is_waited_for() -> None:
    """Its predecessor was proven dead and is fenced, so nothing else would hold the seal."""
    successor = replace(node("b", "second"), succeeds="first")
    forming = replace(
        MEMBER_ALONE,
        nodes={"a": node("a"), "b": successor},
        previous=[*MEMBER_ALONE.previous, Seat("b", "first", "b", 1, 2, 2)],
        missing_since={"b": Now(99.0, "")},
    )
    assert seal(100.0, forming, JUDGE, SPEC) == Wait("b still to join", 100.0 + NEWCOMERS_WAIT_S)
