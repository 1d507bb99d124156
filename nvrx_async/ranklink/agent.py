"""The agent's side of the socket: who is connected, and what is said to all of them.

Whoever can reach the socket may send anything: a wrong user, a bad frame, a connection too many or one that says
nothing costs that connection and one warning of its kind, nobody else anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

from nvrx_async.ranklink import frames
from nvrx_async.ranklink.errors import RankLinkError
from nvrx_async.ranklink.messages import Hello, Message, StopAt, from_wire, to_wire

MOST_CONNECTIONS = 256
HELLO_WITHIN_S = 10.0
SEND_WITHIN_S = 1.0
ACCEPT_AGAIN_S = 1.0
BACKLOG = 128
_CHUNK_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("iii")


def _nobody_hears(message: Message) -> None:
    """Nobody wants to know."""


class RankLinkServer:
    """Serves one socket. `warn` is told of each kind of trouble once, `hear` of what ranks say beside hello."""

    def __init__(
        self, path: str, warn: Callable[[str], None], hear: Callable[[Message], None] = _nobody_hears
    ) -> None:
        self._path = path
        self._hear = hear
        self._warn = warn
        self._warned: set[str] = set()
        self._connected = 0
        self._ranks: dict[socket.socket, Hello] = {}

    @property
    def ranks(self) -> tuple[Hello, ...]:
        """All that said hello and are still connected."""
        return tuple(self._ranks.values())

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; the socket exists once this has started.

        Raises:
            OSError: the path is too long for a socket, or cannot be made.
        """
        listening = await anyio.to_thread.run_sync(_listening, self._path)
        loop = asyncio.get_running_loop()
        with listening:
            async with anyio.create_task_group() as tasks:
                task_status.started()
                while True:
                    try:
                        connection, _ = await loop.sock_accept(listening)
                    except OSError as error:  # no descriptor is left: those who wait are served when one is
                        self._trouble("accept", f"this agent cannot take a rank's connection: {error}")
                        await anyio.sleep_until(anyio.current_time() + ACCEPT_AGAIN_S)
                    else:
                        tasks.start_soon(self._connection, connection)

    async def tell_stop(self, number: int, step: int) -> None:
        """Wake all ranks of a round that wait for the step to stop at."""
        async with anyio.create_task_group() as tasks:
            for connection, hello in list(self._ranks.items()):
                if hello.round == number:
                    tasks.start_soon(self._send, connection, StopAt(number, step))

    async def _connection(self, connection: socket.socket) -> None:
        with connection:
            uid = _peer_uid(connection)
            if uid != os.getuid():
                self._trouble("user", f"user {uid} tried to speak to this agent and was turned away")
            elif self._connected >= MOST_CONNECTIONS:
                self._trouble("many", f"more than {MOST_CONNECTIONS} connections to this agent: refused")
            else:
                self._connected += 1
                try:
                    await self._listen(connection)
                finally:
                    self._connected -= 1
                    self._ranks.pop(connection, None)

    async def _listen(self, connection: socket.socket) -> None:
        """Take what comes until the peer leaves or breaks the protocol."""
        decoder, loop = frames.Decoder(), asyncio.get_running_loop()
        try:
            while True:
                with anyio.fail_after(None if connection in self._ranks else HELLO_WITHIN_S):
                    data = await loop.sock_recv(connection, _CHUNK_BYTES)
                if not data:
                    return
                for raw in decoder.feed(data):
                    message = from_wire(raw)
                    if isinstance(message, Hello):
                        self._ranks[connection] = message
                    elif connection in self._ranks:
                        self._hear(message)
        except TimeoutError:
            self._trouble("silent", f"a connection that said no hello for {HELLO_WITHIN_S:g} s was closed")
        except ConnectionError:
            return  # the rank died or left with something unread
        except RankLinkError as error:
            self._trouble("frame", f"a connection to this agent was closed: {error}")

    async def _send(self, connection: socket.socket, message: Message) -> None:
        """A peer that does not read loses its connection, not the others' time."""
        frame = frames.encode(to_wire(message))
        try:
            with anyio.fail_after(SEND_WITHIN_S):
                await asyncio.get_running_loop().sock_sendall(connection, frame)
        except (OSError, TimeoutError):
            if self._ranks.pop(connection, None) is not None and connection.fileno() >= 0:
                with contextlib.suppress(OSError):  # it left by itself meanwhile
                    connection.shutdown(socket.SHUT_RDWR)

    def _trouble(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(text)


def _listening(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)  # noqa: PTH101 - the path is text from here to the kernel
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _peer_uid(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
