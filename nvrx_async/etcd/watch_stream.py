"""One gRPC stream that serves all watches of a feed until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from nvrx_async.etcd.errors import EtcdError, PermissionDeniedError, RequestRefusedError, UnavailableError
from nvrx_async.etcd.wire import messages, watch_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nvrx_async.etcd.client import EtcdClient
    from nvrx_async.etcd.streams import Stream
    from nvrx_async.etcd.watches import Watch, Watches

DOUBTED_S = 0.5
"""How long a stream may take for a sign of life when other calls to its endpoint have failed already."""

_DENIED = ("permission denied", "invalid auth token", "user name is empty", "auth store is old")


class WatchStream:
    """Three tasks: one receives, one opens and closes watches, one notices silence."""

    def __init__(self, client: EtcdClient, stream: Stream, watches: Watches, silence_s: float) -> None:
        self._client = client
        self._stream = stream
        self._watches = watches
        self._silence_s = silence_s
        self._served: dict[int, Watch] = {}
        self._heard_at_s = anyio.current_time()
        self._ended_by: EtcdError | None = None

    async def run(self) -> None:
        """Serve until nothing is watched any more.

        Raises:
            UnavailableError: the stream ended; open another.
            PermissionDeniedError: the user may not watch a scope, with a fresh token either.
        """
        async with anyio.create_task_group() as tasks:
            for work in (self._receive, self._steer, self._notice_silence):
                tasks.start_soon(self._until_over, work, tasks.cancel_scope)
        if self._ended_by is not None:
            raise self._ended_by

    async def _until_over(self, work: Callable[[], Awaitable[None]], others: anyio.CancelScope) -> None:
        """The first task that ends, ends all: carried as a value, so that no exception group forms."""
        try:
            await work()
        except EtcdError as error:
            self._ended_by = self._ended_by or error
        others.cancel()

    async def _receive(self) -> None:
        while True:
            message = await self._stream.receive()
            self._heard_at_s = anyio.current_time()
            watch = self._served.get(message.watch_id)
            if message.canceled:
                self._canceled(message, watch)
            elif watch is not None:
                watch.denied = 0
                for item in watch.take(message):
                    self._watches.deliver(watch, item)

    async def _steer(self) -> None:
        while self._watches.open():
            await self._list_new()  # somebody waits for it, for the rest nobody does
            await self._open_missing()
            await self._close_unwanted()
            await self._watches.changed()

    async def _close_unwanted(self) -> None:
        for watch_id in [watch_id for watch_id, watch in self._served.items() if not watch.is_open]:
            del self._served[watch_id]
            cancel = messages.WatchCancelRequest(watch_id=watch_id)
            await self._stream.send(messages.WatchRequest(cancel_request=cancel))

    async def _list_new(self) -> None:
        new = tuple(watch for watch in self._watches.open() if watch.resume == 0)
        listings = await self._client.list_all(tuple(watch.scope for watch in new))
        for watch, listing in zip(new, listings, strict=True):
            watch.resume = listing.revision + 1
            self._watches.deliver(watch, listing)

    async def _open_missing(self) -> None:
        served = set(self._served.values())
        for watch in self._watches.open():
            # Ids are never used twice in a feed: what a closed watch still receives finds nobody.
            if watch.resume and watch not in served and not watch.scope.first:
                watch_id = next(self._watches.ids)
                self._served[watch_id] = watch
                watch.began()
                request = watch_request(watch.scope, watch_id=watch_id, start_revision=watch.resume)
                await self._stream.send(request)

    def _canceled(self, message: Any, watch: Watch | None) -> None:
        """The server ended one watch, or refused to begin it (then newer servers name no id)."""
        self._served.pop(message.watch_id, None)
        if any(mark in message.cancel_reason for mark in _DENIED):
            self._denied(message.cancel_reason, (watch,) if watch else tuple(self._served.values()))
        if watch is None or not watch.is_open:
            return  # our own cancellation, acknowledged
        if not message.compact_revision:
            raise RequestRefusedError(
                f"etcd ended the watch of {watch.scope.key}", evidence=(message.cancel_reason,)
            )
        watch.resume = 0  # the changes since are compacted away: list again
        self._watches.notify()

    def _denied(self, reason: str, watches: tuple[Watch, ...]) -> None:
        """Etcd says "permission denied" for a stale token too: only with a fresh one it is true."""
        self._stream.forget_token()
        for watch in watches:
            watch.denied += 1
            if watch.denied > 1:
                raise PermissionDeniedError(
                    f"the etcd user may not watch {watch.scope.key}",
                    evidence=(reason,),
                    hint="grant it: etcdctl role grant-permission ROLE --prefix readwrite /nvrx/",
                )
        raise UnavailableError("etcd refused the token of a watch", evidence=(reason,))

    async def _notice_silence(self) -> None:
        while True:
            patience_s = await self._until_silent()
            if not self._served:
                self._heard_at_s = anyio.current_time()  # without a watch the server has nothing to say
                continue
            asked_at_s = anyio.current_time()
            with anyio.move_on_after(patience_s):
                progress = messages.WatchProgressRequest()
                await self._stream.send(messages.WatchRequest(progress_request=progress))
            await anyio.sleep_until(asked_at_s + patience_s)
            if self._heard_at_s < asked_at_s:
                self._stream.abandon()
                raise UnavailableError(
                    "etcd is silent",
                    evidence=(
                        f"{self._stream.connection.endpoint}: {asked_at_s - self._heard_at_s + patience_s:.1f} s",
                    ),
                )

    async def _until_silent(self) -> float:
        """Wait until nothing was heard for long, or others got no answer there; how long it may take to answer."""
        while (due_s := self._heard_at_s + self._silence_s) > anyio.current_time():
            with anyio.move_on_at(due_s):
                await self._stream.connection.doubted()
                return min(DOUBTED_S, self._silence_s)
        return self._silence_s
