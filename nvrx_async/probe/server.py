"""The answering side. Whoever reaches the port may send anything: it costs that connection, nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import anyio
from anyio.abc import TaskStatus

from nvrx_async.probe import wire
from nvrx_async.probe.errors import ProtocolError, QuestionRefusedError

Handler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers one kind of question from its payload.

Raise `QuestionRefusedError` with a sentence for the asker where there is no answer.
"""

MOST_CONNECTIONS = 512
"""More than agents that ask each other while etcd is away; each holds a frame of 1 MiB at most."""
CONVERSATION_S = 5.0
PATIENT_S = 30.0
ACCEPT_AGAIN_S = 1.0
BACKLOG = 512


class ProbeServer:
    """Serves one port. `handlers` by kind of question; `warn` is told of each kind of trouble once.

    Kinds of question that are `patient` may take `PATIENT_S` to answer. Who leaves meanwhile is not waited for.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        token: str | None,
        warn: Callable[[str], None],
        patient: frozenset[str] = frozenset(),
    ) -> None:
        self._handlers = handlers
        self._patient = patient
        self._key = wire.key_of(token)
        self._warn = warn
        self._warned: set[str] = set()
        self._connected = 0

    async def serve(self, host: str, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen at `host` until cancelled; starts with the address to publish, `host:port`.

        An address that this host does not have (it is reached through a translation) means all addresses.

        Raises:
            OSError: no port can be had.
        """
        listening = await _listening(host)
        port = listening.getsockname()[1]
        loop = asyncio.get_running_loop()
        with listening:
            async with anyio.create_task_group() as tasks:
                task_status.started(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
                while True:
                    try:
                        connection, _ = await loop.sock_accept(listening)
                    except OSError as error:  # no descriptor is left: those who wait are served when one is
                        self._trouble("accept", f"this agent cannot take a question: {error}")
                        await anyio.sleep_until(anyio.current_time() + ACCEPT_AGAIN_S)
                    else:
                        tasks.start_soon(self._connection, connection)

    async def _connection(self, connection: socket.socket) -> None:
        with connection:
            if self._connected >= MOST_CONNECTIONS:
                self._trouble("many", f"more than {MOST_CONNECTIONS} connections to the probe port: refused")
                return
            self._connected += 1
            try:
                with anyio.fail_after(CONVERSATION_S) as limit:
                    await self._converse(connection, limit)
            except TimeoutError:
                self._trouble(
                    "slow",
                    "a connection to the probe port took longer than a question may and was closed",
                )
            except OSError:
                return  # whoever asked is gone
            except ProtocolError as error:
                self._trouble("frame", f"a connection to the probe port was closed: {error}")
            finally:
                self._connected -= 1

    async def _converse(self, connection: socket.socket, limit: anyio.CancelScope) -> None:
        nonce = wire.new_nonce()
        await wire.send(connection, {"nvrx": wire.VERSION, "nonce": nonce})
        question = await wire.receive(connection)
        nonces = (nonce, wire.text(question, "nonce"))
        body = wire.mapping(question, "body")
        if not wire.is_proven(question.get("proof"), self._key, wire.CLIENT, nonces, body):
            self._trouble("token", "a question that does not prove this job's token was turned away")
            await wire.send(connection, {"untrusted": True})
            return
        kind, payload = wire.text(body, "kind"), wire.mapping(body, "payload")
        if kind in self._patient:
            limit.deadline += PATIENT_S
            answer = await _while_connected(connection, lambda: self._answer(kind, payload))
        else:
            answer = await self._answer(kind, payload)
        proof = wire.proof(self._key, wire.SERVER, nonces, answer)
        await wire.send(connection, {"body": answer, "proof": proof})

    async def _answer(self, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        handler = self._handlers.get(kind)
        if handler is None:
            return {"refused": f"this agent answers no question of kind {kind!r}"}
        try:
            return {"answer": await handler(payload)}
        except QuestionRefusedError as error:
            return {"refused": str(error)}
        except Exception as error:  # noqa: BLE001 - a question that finds a bug must not end the agent, and training with it
            self._trouble(f"handler {kind}", f"a question of kind {kind!r} failed: {error!r}")
            return {"refused": f"the question failed: {error!r}"}

    def _trouble(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(text)


async def _while_connected(
    connection: socket.socket, call: Callable[[], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """What `call` returns.

    Raises:
        ConnectionResetError: the other side left, or said something out of turn, before that.
    """
    answers: list[dict[str, Any]] = []

    async def listen(scope: anyio.CancelScope) -> None:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_recv(connection, 1)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen, tasks.cancel_scope)
        answers.append(await call())
        tasks.cancel_scope.cancel()
    if not answers:
        raise ConnectionResetError("the other side left")
    return answers[0]


async def _listening(host: str) -> socket.socket:
    found = await wire.resolved(host, 0)
    family, address = found[0][0], found[0][4]
    everywhere = ("::", 0) if family == socket.AF_INET6 else ("0.0.0.0", 0)  # noqa: S104 - see `serve`
    try:
        return _bound(family, address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    return _bound(family, everywhere)


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
