"""A two-way gRPC stream that ends in one way only: with an error that says why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nvrx_async.etcd.background import scoped
from nvrx_async.etcd.errors import EtcdError, UnavailableError
from nvrx_async.etcd.failures import Verdict, classify
from nvrx_async.etcd.wire import grpc

if TYPE_CHECKING:
    from nvrx_async.etcd.auth import Metadata
    from nvrx_async.etcd.calls import Caller, Rpc
    from nvrx_async.etcd.channel import Connection


class Stream:
    """One stream on one connection. Any error of it means: cancel it, open another."""

    def __init__(self, caller: Caller, connection: Connection, rpc: Rpc, metadata: Metadata) -> None:
        self._caller = caller
        self._metadata = metadata
        self._call: Any = rpc(connection)(metadata=metadata)
        self.connection = connection

    async def send(self, message: Any) -> None:
        """Hand a message to gRPC.

        Raises:
            UnavailableError: the stream is over.
            EtcdError: etcd refused it for good.
        """
        try:
            await scoped(self._call.write(message))
        except asyncio.InvalidStateError:
            await self.receive()  # gRPC says why only to readers
        except grpc.aio.AioRpcError as error:
            raise self._ended(error) from error

    async def receive(self) -> Any:
        """The next message; its header has been admitted. Raises as `send`, and ForeignClusterError."""
        try:
            message = await scoped(self._call.read())
        except grpc.aio.AioRpcError as error:
            raise self._ended(error) from error
        if message is grpc.aio.EOF:
            self.abandon()
            raise UnavailableError(
                "etcd ended a stream", evidence=(f"{self.connection.endpoint}: end of stream",)
            )
        self._caller.identity.admit(message.header, self.connection.endpoint)
        return message

    def abandon(self) -> None:
        """Leave the endpoint as well: it is silent, or ended the stream."""
        self._caller.pool.failed(self.connection)
        self.cancel()

    def forget_token(self) -> None:
        """The token this stream was opened with is no longer good."""
        self._caller.tokens.forget(self._metadata)

    def cancel(self) -> None:
        """End the stream; what is still on its way is dropped."""
        self._call.cancel()

    def _ended(self, error: Any) -> EtcdError:
        failure = classify(error, self.connection.endpoint)
        if failure.verdict is Verdict.TOKEN:
            self.forget_token()
        else:
            self._caller.pool.failed(self.connection)
        return failure.error or UnavailableError("etcd ended a stream", evidence=(failure.detail,))


async def open_stream(caller: Caller, rpc: Rpc) -> Stream:
    """A stream on the connection in use, after it was verified.

    Raises:
        UnavailableError: the connection is not usable now; the pool has moved on.
        EtcdError: etcd refuses this user, or is another cluster.
    """
    connection = caller.pool.current
    metadata = await caller.prepared(connection)
    return Stream(caller, connection, rpc, metadata)
