"""The conversation: challenge, question, answer, each one frame (`nvrx_async.ranklink.frames`).

Server: `{"nvrx": 1, "nonce"}`. Client: `{"nonce", "body": {"kind", "payload"}, "proof"}`. Server: `{"body", "proof"}`.
A proof is HMAC-SHA256 (RFC 2104) over the sender's role, both nonces and the body, keyed by the job token's digest:
it holds for this conversation, this direction and these words. Without a token proofs are empty.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import secrets
import socket
from collections.abc import Mapping
from typing import Any

import orjson

from nvrx_async.aside import aside
from nvrx_async.probe.errors import ProtocolError
from nvrx_async.ranklink import frames
from nvrx_async.ranklink.errors import FrameError

VERSION = 1
CLIENT = "client"
SERVER = "server"
_NONCE_BYTES = 16
_CHUNK_BYTES = 1 << 16


def new_nonce() -> str:
    """A number that is used in one conversation only."""
    return secrets.token_hex(_NONCE_BYTES)


def key_of(token: str | None) -> bytes | None:
    """What proofs are keyed by; None without a job token."""
    return hashlib.sha256(f"nvrx-probe:{token}".encode()).digest() if token else None


def proof(key: bytes | None, role: str, nonces: tuple[str, str], body: Mapping[str, Any]) -> str:
    """The proof that this side sends with `body`. `nonces`: the server's, then the client's."""
    if key is None:
        return ""
    said = orjson.dumps([role, *nonces, body], option=orjson.OPT_SORT_KEYS)
    return hmac.new(key, said, hashlib.sha256).hexdigest()


def is_proven(
    given: object, key: bytes | None, role: str, nonces: tuple[str, str], body: Mapping[str, Any]
) -> bool:
    """Whether the other side, in this role, holds the same token, or neither side has one."""
    wanted = proof(key, role, nonces, body)
    return isinstance(given, str) and hmac.compare_digest(given.encode(), wanted.encode())


def text(fields: Mapping[str, Any], name: str) -> str:
    """A field that must be text.

    Raises:
        ProtocolError: it is not.
    """
    value = fields.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"a frame without the text {name!r}")
    return value


def mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that must be an object.

    Raises:
        ProtocolError: it is not.
    """
    value = fields.get(name)
    if not isinstance(value, Mapping):
        raise ProtocolError(f"a frame without the object {name!r}")
    return value


async def resolved(host: str, port: int) -> list[tuple[Any, ...]]:
    """What `socket.getaddrinfo` finds, in a thread that may be left behind: a name server can be silent for long.

    Raises:
        OSError: the name does not resolve.
    """
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return list(await aside(look_up))


async def send(connection: socket.socket, fields: Mapping[str, Any]) -> None:
    """Send one frame.

    Raises:
        OSError: the other side is gone.
        ProtocolError: more than a frame holds.
    """
    try:
        frame = frames.encode(fields)
    except FrameError as error:
        raise ProtocolError(str(error)) from error
    await asyncio.get_running_loop().sock_sendall(connection, frame)


async def receive(connection: socket.socket) -> Mapping[str, Any]:
    """The next frame; both sides speak in turn, so nothing follows it.

    Raises:
        OSError: the other side is gone.
        ProtocolError: what came is no frame.
    """
    decoder, loop = frames.Decoder(), asyncio.get_running_loop()
    while True:
        data = await loop.sock_recv(connection, _CHUNK_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed")
        try:
            for fields in decoder.feed(data):
                return fields
        except FrameError as error:
            raise ProtocolError(str(error)) from error
