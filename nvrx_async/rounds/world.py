"""The last sealed world, and what its members have said, as the mirror holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nvrx_async.etcd.types import Scope
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Done, Fault, Join, Node, Phase, Round, Seat, Spare, Struck, WorldShard
from nvrx_async.rounds.fencing import is_present
from nvrx_async.rounds.mirror import Mirror


@dataclass(frozen=True, slots=True)
class World:
    """Who was named in the last seal. `sealed_at` is the revision of its first shard, 0 without a world.

    `struck`: incarnations that are asked for no promise any more, and so have no say as recorded ones.
    """

    seats: tuple[Seat, ...] = ()
    spares: tuple[Spare, ...] = ()
    sealed_at: int = 0
    struck: frozenset[str] = frozenset()

    recorded: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Incarnation of each agent that the world names and nobody struck, by node id."""

    def __post_init__(self) -> None:
        named = {one.node_id: one.incarnation for one in self.named if one.incarnation not in self.struck}
        object.__setattr__(self, "recorded", named)

    @property
    def named(self) -> tuple[Seat | Spare, ...]:
        """Members and spares."""
        return (*self.seats, *self.spares)

    def absent(self, nodes: dict[str, Node]) -> tuple[str, ...]:
        """Members whose registration is gone or another incarnation's."""
        return tuple(seat.node_id for seat in self.seats if not is_present(seat, nodes))

    def silent(self, records: Mapping[str, Fault], nodes: dict[str, Node]) -> Iterator[str]:
        """Members that are there, of which there is no record of the incarnation that was seated."""
        for seat in self.seats:
            record = records.get(seat.node_id)
            if (record is None or record.incarnation != seat.incarnation) and is_present(seat, nodes):
                yield seat.node_id

    def spoken_for(self, records: Mapping[str, Fault | Done]) -> set[str]:
        """Members of which there is a record of the incarnation that was seated."""
        return {
            seat.node_id
            for seat in self.seats
            if (record := records.get(seat.node_id)) is not None and record.incarnation == seat.incarnation
        }


def seal_of(now_round: Round) -> tuple[int, str] | None:
    """Round and token under which the last seats stand: of the running round, or of the one before a forming one."""
    running = now_round.phase is not Phase.FORMING
    token = now_round.token if running else now_round.previous_token
    if token is None:
        return None
    if now_round.sealed_in >= 0:
        return now_round.sealed_in, token
    return now_round.number if running else now_round.number - 1, token


def last_world(mirror: Mirror, keys: AttemptKeys, now_round: Round) -> World:
    """The world of the running round, or of the one before the forming round."""
    seal = seal_of(now_round)
    if seal is None:
        return World()
    scope = keys.worlds(*seal)
    struck = mirror.records(Struck, keys.all_struck(seal[0])).values()
    shards = sorted(mirror.records(WorldShard, scope).values(), key=lambda shard: shard.shard)
    return World(
        seats=tuple(seat for shard in shards for seat in shard.seats),
        spares=tuple(spare for shard in shards for spare in shard.spares),
        sealed_at=min((held.create_revision for held in mirror.under(scope)), default=0),
        struck=frozenset(one.incarnation for one in struck),
    )


def registered_nodes(mirror: Mirror, keys: AttemptKeys) -> dict[str, Node]:
    """All agents that hold a registration, by node id."""
    return mirror.records(Node, keys.nodes)


def reports(mirror: Mirror, keys: AttemptKeys, number: int) -> dict[str, Fault]:
    """Final reports on a round, by node id."""
    return mirror.records(Fault, Scope(keys.fault(number, ""), prefix=True))


def joined(mirror: Mirror, keys: AttemptKeys, number: int) -> dict[str, Join]:
    """Who is ready for a round, by node id: members say so in their reports on the one before."""
    with_reports = {
        node_id: report.join for node_id, report in reports(mirror, keys, number - 1).items() if report.join
    }
    return with_reports | mirror.records(Join, keys.joins(number))


def finished(mirror: Mirror, keys: AttemptKeys, number: int) -> dict[str, Done]:
    """Who finished a round well, by node id."""
    return mirror.records(Done, Scope(keys.done(number, ""), prefix=True))
