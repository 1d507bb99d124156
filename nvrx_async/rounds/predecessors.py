"""Who ran the last sealed world of an attempt, as a later agent on their hosts can prove them dead.

A registration goes with its lease. What is left without one is the sealed world, with each member's process
beside its assignment. Only members matter here: nobody else ever has ranks, and who is not seated in the last
world was dead, or had joined without a rank, before it was sealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvrx_async.etcd.types import CreatedAt, ModifiedAt, Put, Scope, Txn
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import Assignment, Node, Round, Seat, Spare, Struck
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.world import last_world, seal_of

FOLLOWED_BY_ALL = 256
"""In a world of more members only who stands where its first one stood follows who is struck: each strike would be
told to every agent that waits. It moves the job, since it has to be there before all are proven dead."""


@dataclass(frozen=True, slots=True)
class Predecessors:
    """Members of an attempt's last world, which stands under round `sealed_in`.

    `here`: those that this host may know; `struck`: proven dead already.
    """

    sealed_in: int
    seats: tuple[Seat, ...]
    spares: tuple[Spare, ...]
    here: Mapping[str, Node]
    struck: frozenset[str]


def seat_scopes(keys: AttemptKeys, mirror: Mirror, node_id: str) -> frozenset[Scope]:
    """The keys that tell who had a seat under this node id."""
    seal = _seal(keys, mirror)
    if seal is None:
        return frozenset({Scope(keys.round)})
    return frozenset({Scope(keys.round), Scope(keys.assignment(*seal, node_id))})


def seated(keys: AttemptKeys, mirror: Mirror, node_id: str) -> Node | None:
    """Who had the seat of this node id in the last world, as far as its process is known."""
    seal = _seal(keys, mirror)
    assignment = mirror.record(Assignment, keys.assignment(*seal, node_id)) if seal is not None else None
    if assignment is None or assignment.process is None:
        return None
    seat = assignment.seat
    return Node(seat.node_id, seat.incarnation, seat.host, "", seat.slots, assignment.process, "")


def scopes(keys: AttemptKeys, mirror: Mirror, me: Identity) -> frozenset[Scope]:
    """The keys that tell who was in the last world, who on this host, and who of them is dead."""
    seal = _seal(keys, mirror)
    if seal is None:
        return frozenset({Scope(keys.round)})
    wanted = {Scope(keys.round), keys.worlds(*seal)}
    seats = _seats(keys, mirror)
    here = [seat.node_id for seat in _here(seats, me)]
    wanted |= {Scope(keys.assignment(*seal, node_id)) for node_id in here}
    if len(seats) <= FOLLOWED_BY_ALL or seats[0].node_id in here:
        wanted.add(keys.all_struck(seal[0]))
    else:
        wanted |= {Scope(keys.struck(seal[0], node_id)) for node_id in here}
    return frozenset(wanted)


def of(keys: AttemptKeys, mirror: Mirror, me: Identity) -> Predecessors:
    """What is known of the last world."""
    seal, now_round = _seal(keys, mirror), mirror.record(Round, keys.round)
    if seal is None or now_round is None:
        return Predecessors(-1, (), (), {}, frozenset())
    world = last_world(mirror, keys, now_round)
    struck = mirror.records(Struck, keys.all_struck(seal[0])).values()
    here = {
        seat.incarnation: node
        for seat in _here(world.seats, me)
        if (node := seated(keys, mirror, seat.node_id)) is not None and node.incarnation == seat.incarnation
    }
    proven = frozenset(one.incarnation for one in struck if one.proven)
    return Predecessors(seal[0], world.seats, world.spares, here, proven)


def strike(keys: AttemptKeys, mirror: Mirror, left: Predecessors, dead: Node, why: str) -> Txn:
    """Say that this member is dead with all it had started. It holds for the world that it was proven for.

    A coordinator that struck it before could only say that it was fenced, and perhaps for an earlier round.
    """
    key = keys.struck(left.sealed_in, dead.node_id)
    return Txn(
        when=(
            ModifiedAt(current(keys.run_id), mirror.revision(current(keys.run_id))),
            ModifiedAt(keys.round, mirror.revision(keys.round)),
            ModifiedAt(key, mirror.revision(key)),
            CreatedAt(keys.outcome, 0),
        ),
        then=(Put(key, encode(Struck(dead.node_id, dead.incarnation, why, proven=True))),),
    )


def _seal(keys: AttemptKeys, mirror: Mirror) -> tuple[int, str] | None:
    now_round = mirror.record(Round, keys.round)
    return seal_of(now_round) if now_round is not None else None


def _seats(keys: AttemptKeys, mirror: Mirror) -> tuple[Seat, ...]:
    now_round = mirror.record(Round, keys.round)
    return last_world(mirror, keys, now_round).seats if now_round is not None else ()


def _here(seats: tuple[Seat, ...], me: Identity) -> Iterator[Seat]:
    """Members that may have run on this host; whether they did, their boot id and pid namespace tell."""
    return (seat for seat in seats if seat.host == me.host or seat.node_id == me.node_id)
