"""The asking side."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import anyio

from nvrx_async.probe import wire
from nvrx_async.probe.errors import (
    ProtocolError,
    QuestionRefusedError,
    UnreachableError,
    UntrustedError,
)


async def ask(
    address: str, kind: str, payload: Mapping[str, Any], timeout_s: float, *, token: str | None = None
) -> Mapping[str, Any]:
    """Ask the agent at `address` (`host:port`, as `Node.probe` has it) one question.

    Raises:
        UnreachableError: nobody answers there within `timeout_s`.
        UntrustedError: the two sides do not hold the same token.
        QuestionRefusedError: the agent does not answer it; the message says why.
        ProtocolError: what answers there is no agent, or one of another version.
    """
    try:
        with anyio.fail_after(timeout_s):
            return await _ask(address, kind, payload, wire.key_of(token))
    except TimeoutError as error:
        raise UnreachableError(f"{address} did not answer within {timeout_s:g} s") from error
    except OSError as error:
        raise UnreachableError(f"{address}: {error.strerror or error}") from error


async def _ask(address: str, kind: str, payload: Mapping[str, Any], key: bytes | None) -> Mapping[str, Any]:
    with await _connected(address) as connection:
        challenge = await wire.receive(connection)
        if challenge.get("nvrx") != wire.VERSION:
            raise ProtocolError(f"{address} speaks another version of this protocol, or none of it")
        nonces = (wire.text(challenge, "nonce"), wire.new_nonce())
        body = {"kind": kind, "payload": payload}
        proof = wire.proof(key, wire.CLIENT, nonces, body)
        await wire.send(connection, {"nonce": nonces[1], "body": body, "proof": proof})
        said = await wire.receive(connection)
    if "untrusted" in said:
        raise UntrustedError(f"{address} does not accept this job token (NVRX_JOB_TOKEN)")
    answer = wire.mapping(said, "body")
    if not wire.is_proven(said.get("proof"), key, wire.SERVER, nonces, answer):
        raise UntrustedError(f"{address} does not prove that it holds this job token (NVRX_JOB_TOKEN)")
    if "refused" in answer:
        raise QuestionRefusedError(str(answer["refused"]))
    return wire.mapping(answer, "answer")


async def _connected(address: str) -> socket.socket:
    """A connection to the first of the name's addresses that takes one."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit():
        raise UnreachableError(f"{address!r} is no address of the form host:port")
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(f"{host} has no address")
    for family, _, _, _, found in await wire.resolved(host, int(port)):
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            await loop.sock_connect(connection, found)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:  # a cancellation above all: the socket is not left open
            connection.close()
            raise
        else:
            return connection
    raise failure
