"""A store around another one, for those who change or watch some of its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nvrx_async.etcd.types import Deleted, KeyValue, Listing, Scope, Txn, TxnResult
from nvrx_async.rounds.drivers import Store


class WrappedStore:
    """Implements `nvrx_async.rounds.drivers.Store`: every call is passed on to `inner` as it is."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def follow(self, scopes: frozenset[Scope]) -> None:
        """See `Store`."""
        self.inner.follow(scopes)

    def changes(self) -> AsyncIterator[Listing | KeyValue | Deleted]:
        """See `Store`."""
        return self.inner.changes()

    async def relist(self) -> tuple[Listing, ...]:
        """See `Store`."""
        return await self.inner.relist()

    async def commit(self, txn: Txn) -> TxnResult:
        """See `Store`."""
        return await self.inner.commit(txn)

    async def revoke(self, lease: int) -> None:
        """See `Store`."""
        await self.inner.revoke(lease)

    async def lead(self, elections: Scope, key: str, create_revision: int) -> bool:
        """See `Store`."""
        return await self.inner.lead(elections, key, create_revision)

    async def deposed(self, key: str, create_revision: int) -> None:
        """See `Store`."""
        await self.inner.deposed(key, create_revision)
