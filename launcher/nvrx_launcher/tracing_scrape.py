"""Metrics for Prometheus: `GET /metrics`, one answer a connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
from anyio.abc import SocketListener, SocketStream

from nvrx_telemetry.prometheus import CONTENT_TYPE

REQUEST_LIMIT_S = 10.0
"""How long a scraper may take to ask and to listen."""
MOST_CONNECTIONS = 32
"""Who comes beside so many is turned away: a port that anybody reaches must not take the agent's descriptors."""
ACCEPT_AGAIN_S = 1.0
_MOST_BYTES = 8192


async def serve_metrics(
    port: int, scraped: Callable[[], Awaitable[str]], warn: Callable[[str], None]
) -> None:
    """Answer until cancelled. A port that is taken is warned of: the job does not need it."""
    try:
        listening = await anyio.create_tcp_listener(local_port=port)
    except OSError as error:
        warn(f"no metrics for Prometheus: port {port} cannot be listened on ({error})")
        return
    places = anyio.CapacityLimiter(MOST_CONNECTIONS)
    async with listening, anyio.create_task_group() as tasks:
        for listener in listening.listeners:
            if isinstance(listener, SocketListener):
                tasks.start_soon(_accept, listener, places, scraped)


class Accepts(Protocol):
    """What listens."""

    async def accept(self) -> SocketStream:
        """The next one who connects."""


async def _accept(
    listener: Accepts, places: anyio.CapacityLimiter, scraped: Callable[[], Awaitable[str]]
) -> None:
    async def answer(stream: SocketStream) -> None:
        try:
            with anyio.move_on_after(REQUEST_LIMIT_S):
                async with stream:
                    await _answer(stream, scraped)
        finally:
            places.release_on_behalf_of(stream)

    async with anyio.create_task_group() as tasks:
        while True:
            try:
                stream = await listener.accept()
            except OSError:  # no descriptor is left: those who wait are served when one is
                await anyio.sleep_until(anyio.current_time() + ACCEPT_AGAIN_S)
                continue
            try:
                places.acquire_on_behalf_of_nowait(stream)
            except anyio.WouldBlock:
                await stream.aclose()
            else:
                tasks.start_soon(answer, stream)


async def _answer(stream: SocketStream, scraped: Callable[[], Awaitable[str]]) -> None:
    try:
        words = (await _head(stream)).split(b" ")
        found = words[0] == b"GET" and len(words) > 1 and words[1].split(b"?")[0] in (b"/metrics", b"/")
        body = (await scraped()).encode() if found else b"see /metrics\n"
        status = b"200 OK" if found else b"404 Not Found"
        kind = CONTENT_TYPE.encode() if found else b"text/plain"
        await stream.send(
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (status, kind, len(body), body)
        )
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return  # the scraper left


async def _head(stream: SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MOST_BYTES:
        head += await stream.receive()
    return head.partition(b"\r\n")[0]
