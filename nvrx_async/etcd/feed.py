"""All changes of some scopes: a listing first, then every later change once, over restarts and fail-over.

One gRPC stream carries all watches. Each watch remembers the revision it has delivered up to; a new stream
resumes behind it. What etcd has compacted meanwhile is listed again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

import anyio

from nvrx_async.etcd.background import leave
from nvrx_async.etcd.errors import EtcdError, ForeignClusterError, UnavailableError
from nvrx_async.etcd.streams import open_stream
from nvrx_async.etcd.watch_stream import WatchStream
from nvrx_async.etcd.watches import Item, Watch, Watches

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from nvrx_async.etcd.client import EtcdClient
    from nvrx_async.etcd.types import Listing, Scope

SILENCE_S = 2.0
"""After so much silence etcd is asked for a sign of life, after as much again the endpoint is left."""

RETRY_S = 0.15


class Feed:
    """Iterate over it for `Listing`, `KeyValue` and `Deleted`; scopes that overlap bring a change once each.

    etcd being away never ends the iteration: it goes on when etcd is back; `away` is called each time that it is
    found to be away. The iteration raises
    `AuthenticationError`, `PermissionDeniedError`, `RequestRefusedError` or `ForeignClusterError` where
    waiting would be in vain.
    """

    def __init__(
        self,
        client: EtcdClient,
        *,
        silence_s: float = SILENCE_S,
        away: Callable[[], None] | None = None,
    ) -> None:
        self._client = client
        self._silence_s = silence_s
        self._away = away
        # Unbounded: a consumer that is slow must not make a healthy stream look silent, and what is watched
        # are decisions and membership, a handful of keys a node. All that is there is handed over without a
        # turn of the event loop between, so that who decides on it decides once.
        self._items: deque[tuple[Watch, Item]] = deque()
        self._news = asyncio.Event()
        self._is_over = False
        self._watches = Watches(self._deliver)
        self._tasks: TaskGroup | None = None
        self._failure: EtcdError | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run, name="etcd feed")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            try:
                await leave(tasks, kind, error, trace)
            finally:
                self._end()

    def set_scopes(self, scopes: frozenset[Scope]) -> None:
        """Watch exactly these from now on. A scope that is closed and opened again is listed again."""
        self._watches.set(scopes)

    async def relist(self) -> tuple[Listing, ...]:
        """Read all current scopes now, linearizable; changes up to these listings are not delivered any more.

        Raises:
            UnavailableError: no endpoint answered.
        """
        watches = self._watches.open()
        listings = await self._client.list_all(tuple(watch.scope for watch in watches))
        for watch, listing in zip(watches, listings, strict=True):
            watch.floor = max(watch.floor, listing.revision + 1)
        return listings

    def pass_over(self) -> None:
        """Leave out what has come by now: for who reads etcd anew at every change."""
        self._items.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while True:
            while self._items:
                watch, item = self._items.popleft()
                if watch.wants(item):
                    return item
            if self._is_over:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    def _deliver(self, watch: Watch, item: Item) -> None:
        self._items.append((watch, item))
        self._news.set()

    def _end(self) -> None:
        """Nothing more comes; what is there is still handed over."""
        self._is_over = True
        self._news.set()

    async def _run(self) -> None:
        """Streams, one after the other, as long as there is anything to watch."""
        foreign = 0
        try:
            while True:
                if not self._watches.open():
                    await self._watches.changed()
                    continue
                try:
                    await self._one_stream()
                except UnavailableError:
                    foreign = 0
                    if self._away is not None:
                        self._away()
                    await anyio.sleep(
                        RETRY_S
                    )  # etcd is away, or the stream ended: go on at the next endpoint
                except ForeignClusterError:
                    foreign += 1
                    if foreign >= len(self._client.caller.pool.connections):
                        raise
        except EtcdError as error:
            self._failure = error  # raised where the feed is consumed
            self._end()

    async def _one_stream(self) -> None:
        """Returns when there is nothing left to watch."""
        stream = await open_stream(self._client.caller, lambda at: at.watch.Watch)
        try:
            await WatchStream(self._client, stream, self._watches, self._silence_s).run()
        finally:
            stream.cancel()
