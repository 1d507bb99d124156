"""etcd as the job sees it: linearizable reads, transactions, leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from nvrx_async.etcd.auth import Tokens
from nvrx_async.etcd.calls import Caller
from nvrx_async.etcd.channel import Pool, open_pool
from nvrx_async.etcd.contact import first_answer
from nvrx_async.etcd.errors import LeaseNotFoundError, RequestRefusedError, TxnTooLargeError
from nvrx_async.etcd.identity import Identity
from nvrx_async.etcd.types import MAX_TXN_OPERATIONS, KeyValue, Listing, Scope, Txn, TxnResult
from nvrx_async.etcd.wire import (
    FUTURE_REVISION,
    lease_question,
    listing,
    messages,
    newest_before_request,
    range_request,
    reads_request,
    txn_request,
)

if TYPE_CHECKING:
    from types import TracebackType

    from nvrx_async.etcd.config import EtcdConfig


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease and the time to live that etcd granted, which may be more than was asked for."""

    id: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Status:
    """What one member says of itself. `leader` is 0 while its cluster has none."""

    version: str
    cluster_id: int
    member_id: int
    leader: int
    db_size_bytes: int
    revision: int


class EtcdClient:
    """Client of one cluster. Enter it before use; a call moves on to the next endpoint when one fails.

    All calls raise `UnavailableError`, `ForeignClusterError`, `AuthenticationError`,
    `PermissionDeniedError` or `RequestRefusedError` where these apply; then nothing took effect.
    """

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self._caller: Caller | None = None

    @property
    def caller(self) -> Caller:
        """For this room's streams: connections, tokens, identity."""
        if self._caller is None:
            raise RuntimeError("EtcdClient is used outside of `async with`")
        return self._caller

    @property
    def cluster_id(self) -> int | None:
        """The pinned cluster, None before the first answer."""
        return self.caller.identity.cluster_id

    async def __aenter__(self) -> Self:
        tokens = Tokens(self.config.credentials, self.config.call_timeout_s)
        pool: Pool = await open_pool(self.config)
        self._caller = Caller(pool, tokens, Identity(), self.config.call_timeout_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        caller, self._caller = self.caller, None
        await caller.pool.close()

    async def first_contact(self, timeout_s: float) -> Status:
        """Wait until any endpoint answers, has a leader, and lets us in.

        Raises:
            UnavailableError: none did within `timeout_s`; names each address tried and what it said.
            TlsError: no endpoint's TLS handshake can succeed with these files.
            ForeignClusterError: endpoints that answer belong to different clusters.
            AuthenticationError: etcd does not accept the user, or wants one.
        """
        return _status(await first_answer(self.caller, self.config, timeout_s))

    async def status(self) -> Status:
        """What the member in use says of itself."""
        return _status(await self.caller.repeat(lambda at: at.maintenance.Status, messages.StatusRequest()))

    async def get(self, key: str) -> KeyValue | None:
        """One key, None if it does not exist."""
        items = (await self.list(Scope(key))).items
        return items[0] if items else None

    async def list(self, scope: Scope) -> Listing:
        """All keys of a scope, linearizable."""
        answer = await self.caller.repeat(lambda at: at.kv.Range, range_request(scope), linearizable=True)
        return listing(scope, answer, answer.header.revision)

    async def newest_before(self, scope: Scope, create_revision: int) -> KeyValue | None:
        """The key of the scope that was created last before this revision, None if there is none."""
        request = newest_before_request(scope, create_revision)
        answer = await self.caller.repeat(lambda at: at.kv.Range, request, linearizable=True)
        items = listing(scope, answer, answer.header.revision).items
        return items[0] if items else None

    async def list_all(self, scopes: tuple[Scope, ...]) -> tuple[Listing, ...]:
        """All scopes as they stood together at one revision, linearizable.

        More scopes than one transaction takes are read in several, the later ones at the first one's
        revision.
        """
        found: list[Listing] = []
        revision = 0
        for start in range(0, len(scopes), MAX_TXN_OPERATIONS):
            chunk = scopes[start : start + MAX_TXN_OPERATIONS]
            request = reads_request(chunk, revision=revision)
            answer = await self.caller.repeat(lambda at: at.kv.Txn, request, linearizable=True)
            revision = revision or answer.header.revision
            found += [
                listing(scope, response.response_range, revision)
                for scope, response in zip(chunk, answer.responses, strict=True)
            ]
        return tuple(found)

    async def commit(self, txn: Txn) -> TxnResult:
        """Do the transaction. It is sent again only where it certainly was not executed.

        Raises:
            OutcomeUnknownError: the answer is lost, it may have taken effect.
            TxnTooLargeError: more than MAX_TXN_OPERATIONS compares or operations.
            LeaseNotFoundError: a put names a lease that is over.
            NoSpaceError: etcd's database is full.
        """
        _check_size(txn)
        request = txn_request(txn)
        if txn.then:
            answer = await self.caller.once(lambda at: at.kv.Txn, request)
        else:
            answer = await self.caller.repeat(lambda at: at.kv.Txn, request, linearizable=True)
        return TxnResult(succeeded=answer.succeeded, revision=answer.header.revision)

    async def grant(self, ttl_s: float) -> Lease:
        """A new lease of at least `ttl_s` (whole seconds; etcd has a minimum of 1.5 election time-outs).

        Repeated after a lost answer, which leaves at most a lease behind that runs out by itself.
        """
        request = messages.LeaseGrantRequest(TTL=max(1, -int(-ttl_s // 1)))
        answer = await self.caller.repeat(lambda at: at.lease.LeaseGrant, request)
        return Lease(id=answer.ID, ttl_s=float(answer.TTL))

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys; one that is over already is no error."""
        try:
            await self.caller.repeat(
                lambda at: at.lease.LeaseRevoke, messages.LeaseRevokeRequest(ID=lease_id)
            )
        except LeaseNotFoundError:
            return  # what was asked for holds: a repeated revoke finds its own first attempt done

    async def is_lease_over(self, lease_id: int) -> bool:
        """Whether it is, by the word of a quorum; writes nothing.

        What etcd tells of leases is its leader's memory. A put on the lease is judged when all members apply it: before
        etcd 3.4 to 3.6 execute a transaction they look whether its leases exist, then whether the revisions that it
        reads do. So one that also reads a revision which cannot be is refused for the one reason or the other.
        """
        try:
            await self.caller.repeat(lambda at: at.kv.Txn, lease_question(lease_id))
        except LeaseNotFoundError:
            return True
        except RequestRefusedError as error:
            if not any(FUTURE_REVISION in line for line in error.evidence):
                raise
        return False

    async def lease_remaining(self, lease_id: int) -> float | None:
        """Seconds the lease would live without a renewal, None if it is over."""
        request = messages.LeaseTimeToLiveRequest(ID=lease_id)
        answer: Any = await self.caller.repeat(lambda at: at.lease.LeaseTimeToLive, request)
        return float(answer.TTL) if answer.TTL >= 0 else None


def _check_size(txn: Txn) -> None:
    for what, count in (("compares", len(txn.when)), ("operations", len(txn.then))):
        if count > MAX_TXN_OPERATIONS:
            raise TxnTooLargeError(
                f"a transaction has {count} {what}, etcd takes {MAX_TXN_OPERATIONS}",
                hint="split it where a part alone is safe, or shard the value",
            )


def _status(answer: Any) -> Status:
    return Status(
        version=answer.version,
        cluster_id=answer.header.cluster_id,
        member_id=answer.header.member_id,
        leader=answer.leader,
        db_size_bytes=answer.dbSize,
        revision=answer.header.revision,
    )
