"""Where the seats of a round stand in etcd: a round that changes none keeps the seal of an earlier one.

Most restarts seat the same agents at the same places. Then the round's key alone says so: nothing is written, listed
or watched anew for each of a thousand agents.
"""

from __future__ import annotations

from dataclasses import replace

from nvrx_async.job.records import Assignment, Round
from nvrx_async.rounds.limits import handed_on
from nvrx_async.rounds.seal import Sealed
from nvrx_async.rounds.world import World

SEAL_KEPT = 100
"""So many rounds may share a seal: keys of a round are deleted after `office.ROUNDS_KEPT`, which is more."""


def keeps_seats(world: World, sealed: Sealed, number: int, sealed_in: int) -> bool:
    """Whether round `number` may run on the seal of round `sealed_in`, whose world is `world`: nobody moved."""
    same = (sealed.seats, sealed.spares) == (world.seats, world.spares)
    return same and not (sealed.absent or world.struck) and number - sealed_in < SEAL_KEPT


def in_round(seated: Assignment, now_round: Round) -> Assignment:
    """An assignment as the running round has it: the seat is the seal's, store and limits are the round's own."""
    return replace(
        seated,
        round=now_round.number,
        master_address=now_round.master_address or seated.master_address,
        master_port=now_round.master_port or seated.master_port,
        extra={**seated.extra, **handed_on(now_round.extra)},
    )
