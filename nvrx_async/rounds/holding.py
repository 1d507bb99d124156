"""Which lease a life has, whether it holds the registration, and for how long etcd has been away. Pure.

A life is one incarnation. It keeps it when its lease ends while etcd is out of reach: as soon as there is a new
lease, the same incarnation registers again, with its ranks alive if they could be kept so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nvrx_async.etcd.types import CreatedAt, ModifiedAt, Put, Scope, Txn
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import current
from nvrx_async.job.records import JobSpec, Node, Round, Spare
from nvrx_async.rounds.effects import Campaign, Effect, Rely
from nvrx_async.rounds.events import LeaseGranted, LeaseLost, Now, Renewed
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.own import OwnRanks
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.registration import Registration
from nvrx_async.rounds.world import last_world, seal_of

RETURN_LIMIT_S = 25.0
"""How long, beyond the outage limit, an agent waits for etcd to come back."""
ALIVE = "alive"
"""Key of a registration's `extra` after an outage: the round whose ranks live on, and how many they are."""


@dataclass(frozen=True, slots=True)
class Stand:
    """How a registration stands. `again` registers this incarnation anew; `effects` follow a new standing."""

    registered: Registration
    stands: bool
    again: Txn | None = None
    effects: tuple[Effect, ...] = ()


class Holding:
    """See the module. `good_until_s` is T by the lease: ranks start and rounds are joined only before it."""

    def __init__(self, lease: int, spec: JobSpec, mirror: Mirror) -> None:
        self.lease = lease
        self.lost = False
        self.good_until_s = 0.0
        self._acknowledged_s: float | None = None
        self._stood: set[tuple[int, int]] = set()
        self._spec = spec
        self._mirror = mirror

    def observe(self, event: Renewed | LeaseLost | LeaseGranted) -> None:
        """Something became known of a lease."""
        match event:
            case Renewed(sent_at_s=sent_at_s, good_until_s=good_until_s):
                self._acknowledged_s = max(sent_at_s, self._acknowledged_s or sent_at_s)
                self.good_until_s = max(self.good_until_s, good_until_s)
            case LeaseLost():
                self.lost = True
            case LeaseGranted(lease=lease):
                self.lease, self.lost = lease, False

    @property
    def gives_up_at_s(self) -> float | None:
        """Until when etcd may be away; None before the first renewal."""
        if self._acknowledged_s is None:
            return None
        limit_s = self._spec.outage_limit_s
        return max(self._acknowledged_s + limit_s + RETURN_LIMIT_S, self.good_until_s + limit_s)

    def taken(self, registered: Registration) -> bool:
        """Whether another incarnation holds this agent's key."""
        node = self._mirror.record(Node, registered.key)
        return node is not None and node.incarnation != registered.node.incarnation

    def missing(self, registered: Registration) -> bool:
        """Whether this agent's key is known to be gone."""
        return self._mirror.knows(Scope(registered.key)) and self._mirror.get(registered.key) is None

    def stand(self, registered: Registration, ranks: OwnRanks | None) -> Stand:
        """How the registration stands on the lease that is renewed, and what is to be done if it does not."""
        if not self._stands(registered):
            registered = self._adopted(registered) or registered
        if not self._stands(registered):
            return Stand(registered, stands=False, again=self._again(registered, ranks))
        now_on = (registered.lease, registered.revision)
        if now_on in self._stood:
            return Stand(registered, stands=True)
        self._stood.add(now_on)
        campaign = Campaign(registered.keys.election(registered.lease), registered.revision)
        return Stand(registered, stands=True, effects=(Rely(registered.lease), campaign))

    def all_dead(self, registered: Registration, now: Now, book: Book) -> bool:
        """Whether nothing of the job runs once nobody is registered: all leases ended after their T.

        Not so where ranks may live by promises: of this agent, or of others since its own lease is newer than
        the world.
        """
        now_round = self._mirror.record(Round, registered.keys.round)
        seal = seal_of(now_round) if now_round is not None else None
        if self._spec.outage_limit_s <= 0 or now_round is None or seal is None:
            return True
        sealed_at = last_world(self._mirror, registered.keys, now_round).sealed_at
        return registered.revision < sealed_at and all(until <= now.s for until in book.outstanding.values())

    def _stands(self, registered: Registration) -> bool:
        if self.lost or registered.lease != self.lease:
            return False
        held = self._mirror.get(registered.key)
        if held is None:
            return not self._mirror.knows(Scope(registered.key))
        return held.create_revision == registered.revision

    def _adopted(self, registered: Registration) -> Registration | None:
        """The registration as it is in etcd: a commit whose answer was lost took effect."""
        held, node = self._mirror.get(registered.key), self._mirror.record(Node, registered.key)
        mine = node is not None and node.incarnation == registered.node.incarnation
        if held is None or not mine or held.lease != self.lease or self.lost:
            return None
        return replace(registered, revision=held.create_revision, lease=self.lease)

    def _again(self, registered: Registration, ranks: OwnRanks | None) -> Txn | None:
        """Register anew on the new lease; None while there is none, or the old key still stands."""
        if self.lost or not self.missing(registered):
            return None
        keys, attempt = registered.keys, current(registered.keys.run_id)
        living = ranks if ranks is not None and not ranks.gone else None
        alive = {ALIVE: {"round": living.round, "ranks": living.assignment.seat.slots}} if living else {}
        node = replace(registered.node, extra={**registered.node.extra, **alive})
        candidacy = Spare(node.node_id, node.incarnation)
        return Txn(
            when=(
                ModifiedAt(attempt, self._mirror.revision(attempt)),
                CreatedAt(keys.outcome, 0),
                CreatedAt(registered.key, 0),
            ),
            then=(
                Put(registered.key, encode(node), self.lease),
                Put(keys.election(self.lease), encode(candidacy), self.lease),
            ),
        )
