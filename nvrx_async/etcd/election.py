"""Who leads: the candidate whose key was created first. Each waits for its predecessor only.

After etcd's `client/v3/concurrency` election. Leading is no right to write: every transaction of a leader
compares its key's create revision, and one that was deposed meanwhile changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from nvrx_async.etcd.errors import DeposedError, UnavailableError
from nvrx_async.etcd.feed import Feed
from nvrx_async.etcd.types import KeyValue, Listing, Scope

if TYPE_CHECKING:
    from nvrx_async.etcd.client import EtcdClient

_RETRY_S = 0.2


async def lead(client: EtcdClient, elections: Scope, key: str, create_revision: int) -> None:
    """Return when no candidate of `elections` is older than the own `key`, created at `create_revision`.

    etcd being away only delays it.

    Raises:
        DeposedError: the own key is gone or was created again.
    """
    while True:
        try:
            own = await client.get(key)
            before = await client.newest_before(elections, create_revision)
        except UnavailableError:
            await anyio.sleep(_RETRY_S)
            continue
        if own is None or own.create_revision != create_revision:
            raise DeposedError(f"candidate {key} of revision {create_revision} is no longer in the election")
        if before is None:
            return
        await _first_gone(client, (key, create_revision), (before.key, before.create_revision))


async def deposed(client: EtcdClient, key: str, create_revision: int) -> None:
    """Return when the key is gone, or was created again at another revision."""
    await _first_gone(client, (key, create_revision))


async def _first_gone(client: EtcdClient, *candidates: tuple[str, int]) -> None:
    """Watch single keys until one of them is not what it was."""
    created_at = dict(candidates)
    async with Feed(client) as feed:
        feed.set_scopes(frozenset(Scope(key) for key in created_at))
        async for item in feed:
            if isinstance(item, Listing):
                key, found = item.scope.key, item.items
            else:
                key, found = item.key, (item,) if isinstance(item, KeyValue) else ()
            if not any(_is(entry, key, created_at[key]) for entry in found):
                return


def _is(candidate: KeyValue, key: str, create_revision: int) -> bool:
    return candidate.key == key and candidate.create_revision == create_revision
