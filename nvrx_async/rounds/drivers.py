"""What the interpreter needs of the world: etcd and this node's processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from nvrx_async.etcd.types import Deleted, KeyValue, Listing, Scope, Txn, TxnResult
from nvrx_async.job.records import Assignment, Node
from nvrx_async.rounds.effects import AskPeers, Extend, Rely
from nvrx_async.rounds.events import Answered, PortReserved, Proven, RanksHeld


class Store(Protocol):
    """The etcd side: reads, watches and commits for one life."""

    def follow(self, scopes: frozenset[Scope]) -> None:
        """List and watch exactly these scopes."""

    def changes(self) -> AsyncIterator[Listing | KeyValue | Deleted]:
        """Listings of new scopes and later changes, in order for each scope."""

    async def relist(self) -> tuple[Listing, ...]:
        """Read all followed scopes as they are now."""

    async def commit(self, txn: Txn) -> TxnResult:
        """Commit; an EtcdError says that it did not happen, or that nobody knows."""

    async def revoke(self, lease: int) -> None:
        """End a lease; one that cannot be ended now lapses by itself."""

    async def lead(self, elections: Scope, key: str, create_revision: int) -> bool:
        """Return True when no earlier candidate is left, False when the key itself is gone."""

    async def deposed(self, key: str, create_revision: int) -> None:
        """Return when the key is gone."""


class Peers(Protocol):
    """The lease of this agent, and the other agents while etcd is away."""

    def move_t(self, by: Rely | Extend) -> None:
        """Renewals of this lease move T from now on; or the ranks of a round, and no others, live until then."""

    async def ask(self, asking: AskPeers) -> Answered:
        """Ask all peers at once, and try a renewal; silence is an objection after a moment."""


class Ranks(Protocol):
    """This node's processes. What becomes of them comes back as events."""

    async def start(self, assignment: Assignment, generation: int) -> None:
        """Start the ranks of an assignment."""

    def stop(self, number: int, *, grace: bool) -> None:
        """Stop the ranks of a round."""

    def kill_hung(self, number: int) -> None:
        """Note what the ranks of a round do, for 2 s at most, then kill them."""

    async def hold(self, number: int) -> RanksHeld:
        """Let no rank of a round pass its next `should_stop`, and tell how far they have come."""

    def stop_at(self, number: int, step: int | None) -> None:
        """Tell the ranks of a round at which step to stop, None to go on."""

    async def reserve_port(self, number: int) -> PortReserved:
        """Hold a port for the round's store."""

    async def prove(self, node: Node) -> Proven:
        """Find out whether the process behind a registration is dead."""
