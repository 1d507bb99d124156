"""A gRPC server that answers like etcd where a test does not say otherwise."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

from nvrx_async.etcd.wire import grpc, messages, stubs

HEADER = messages.ResponseHeader(cluster_id=1, member_id=1, revision=1)

Unary = Callable[[Any, Any], Awaitable[Any]]
Bidirectional = Callable[[AsyncIterator[Any], Any], AsyncIterator[Any]]


async def _range(request: Any, context: Any) -> Any:
    return messages.RangeResponse(header=HEADER)


async def _grant(request: Any, context: Any) -> Any:
    return messages.LeaseGrantResponse(header=HEADER, ID=77, TTL=request.TTL)


async def _revoke(request: Any, context: Any) -> Any:
    return messages.LeaseRevokeResponse(header=HEADER)


class FakeEtcd:
    """On a free port, for the length of the block. `keep_alive`, `txn`, `watch` serve these calls."""

    def __init__(
        self,
        *,
        txn: Unary | None = None,
        keep_alive: Bidirectional | None = None,
        watch: Bidirectional | None = None,
    ) -> None:
        self._server = grpc.aio.server()
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        # The generated servicers answer UNIMPLEMENTED to whatever is not replaced here.
        kv, lease, watcher = stubs.KVServicer(), stubs.LeaseServicer(), stubs.WatchServicer()
        kv.Range = _range
        lease.LeaseGrant = _grant
        lease.LeaseRevoke = _revoke
        if txn is not None:
            kv.Txn = txn
        if keep_alive is not None:
            assert inspect.isasyncgenfunction(keep_alive)
            lease.LeaseKeepAlive = keep_alive
        if watch is not None:
            watcher.Watch = watch
        stubs.add_KVServicer_to_server(kv, self._server)
        stubs.add_LeaseServicer_to_server(lease, self._server)
        stubs.add_WatchServicer_to_server(watcher, self._server)

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Cut all calls at once."""
        await self._server.stop(grace=0)
