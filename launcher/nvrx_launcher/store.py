"""The interpreter's view of etcd for one life: feed, commits, leadership."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from nvrx_async.etcd import DeposedError, EtcdClient, EtcdError, Feed, deposed, lead
from nvrx_async.etcd.types import Deleted, KeyValue, Listing, Scope, Txn, TxnResult


class EtcdStore:
    """Implements `nvrx_async.rounds.drivers.Store`."""

    def __init__(self, client: EtcdClient, feed: Feed) -> None:
        self._client = client
        self._feed = feed
        self._followed: frozenset[Scope] = frozenset()

    def follow(self, scopes: frozenset[Scope]) -> None:
        """List and watch exactly these scopes."""
        if scopes != self._followed:
            self._followed = scopes
            self._feed.set_scopes(scopes)

    async def changes(self) -> AsyncIterator[Listing | KeyValue | Deleted]:
        """Listings of new scopes and later changes, in order for each scope."""
        async for item in self._feed:
            yield item

    async def relist(self) -> tuple[Listing, ...]:
        """Read all followed scopes as they are now."""
        return await self._feed.relist()

    async def commit(self, txn: Txn) -> TxnResult:
        """Commit; an EtcdError says that it did not happen, or that nobody knows."""
        return await self._client.commit(txn)

    async def revoke(self, lease: int) -> None:
        """End a lease; one that cannot be ended now lapses by itself."""
        with contextlib.suppress(EtcdError):  # its keys' end is what the machine waits for
            await self._client.revoke(lease)

    async def lead(self, elections: Scope, key: str, create_revision: int) -> bool:
        """Return True when no earlier candidate is left, False when the key itself is gone."""
        try:
            await lead(self._client, elections, key, create_revision)
        except DeposedError:
            return False
        return True

    async def deposed(self, key: str, create_revision: int) -> None:
        """Return when the key is gone."""
        await deposed(self._client, key, create_revision)
