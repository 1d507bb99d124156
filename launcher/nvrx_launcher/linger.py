"""How long what serves a job outlives it: until the other agents have left, or nobody could tell any more."""

from __future__ import annotations

from contextlib import suppress

import anyio

from nvrx_async.etcd import EtcdClient, EtcdError, Feed
from nvrx_async.etcd.types import Deleted, Listing, Scope

_LOOK_EVERY_S = 1.0
_SILENT_S = 3.0
"""Longer than an election takes: a cluster that does not answer then has lost its quorum."""
_LAST_WORD_S = 0.3
"""Members learn of a change one after another, within milliseconds: the last agent's must still have its quorum."""


async def until_all_left(client: EtcdClient, nodes: Scope, limit_s: float) -> None:
    """Return when no agent is registered, when etcd answers no more, or after `limit_s`.

    etcd that falls silent here has lost its quorum: members end with agents which saw that all had left.
    """
    with anyio.move_on_after(limit_s):
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(_end_with_etcd, client, nodes, waiting.cancel_scope)
            await _all_gone(client, nodes)
            if len(client.config.endpoints) > 1:
                await anyio.sleep(_LAST_WORD_S)
            waiting.cancel_scope.cancel()


async def _all_gone(client: EtcdClient, nodes: Scope) -> None:
    async with Feed(client) as feed:
        feed.set_scopes(frozenset({nodes}))
        others: set[str] = set()
        async for item in feed:
            if isinstance(item, Listing):
                others = {held.key for held in item.items}
            elif isinstance(item, Deleted):
                others.discard(item.key)
            if not others:
                return


async def _end_with_etcd(client: EtcdClient, nodes: Scope, everything: anyio.CancelScope) -> None:
    look_s = anyio.current_time()
    while True:
        look_s += _LOOK_EVERY_S
        await anyio.sleep_until(look_s)
        answered = False
        with anyio.move_on_after(_SILENT_S), suppress(EtcdError):
            await client.list(nodes)
            answered = True
        if not answered:
            everything.cancel()
            return
