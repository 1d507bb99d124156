"""Reads for people: which keys there are, how many, and large scopes in pages. Nothing here writes.

An agent follows a handful of keys; who looks from outside may meet the keys of any number of jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvrx_async.etcd.types import KeyValue, Scope
from nvrx_async.etcd.wire import key_value, messages, range_bounds

if TYPE_CHECKING:
    from nvrx_async.etcd.client import EtcdClient

PAGE_KEYS = 1000
"""Keys in one answer: below the 16 MiB of a message for reports of 16 ranks a node."""


async def first_key(client: EtcdClient, scope: Scope, *, not_before: str = "") -> str | None:
    """The first key of the scope, in the order of bytes, at or behind `not_before`; None if there is none."""
    start, end = range_bounds(scope)
    request = messages.RangeRequest(
        key=max(start, not_before.encode()), range_end=end, limit=1, keys_only=True
    )
    answer = await client.caller.repeat(lambda at: at.kv.Range, request, linearizable=True)
    return str(answer.kvs[0].key.decode(errors="surrogateescape")) if answer.kvs else None


async def count(client: EtcdClient, scope: Scope) -> int:
    """How many keys the scope holds."""
    start, end = range_bounds(scope)
    request = messages.RangeRequest(key=start, range_end=end, count_only=True)
    answer = await client.caller.repeat(lambda at: at.kv.Range, request, linearizable=True)
    return int(answer.count)


async def pages(client: EtcdClient, scope: Scope, *, page_keys: int = PAGE_KEYS) -> tuple[KeyValue, ...]:
    """All keys of a scope as they stood together at one revision, however many there are."""
    start, end = range_bounds(scope)
    found: list[KeyValue] = []
    revision = 0
    while True:
        request = messages.RangeRequest(key=start, range_end=end, limit=page_keys, revision=revision)
        answer: Any = await client.caller.repeat(lambda at: at.kv.Range, request, linearizable=True)
        found.extend(key_value(kv) for kv in answer.kvs)
        if not answer.more:
            return tuple(found)
        revision = revision or answer.header.revision
        start = answer.kvs[-1].key + b"\0"
