"""The port for Prometheus: whoever comes, however many, the agent lives on and answers."""

from __future__ import annotations

import errno
import socket

import anyio
import pytest
from anyio.abc import SocketStream

from nvrx_launcher import tracing_scrape
from nvrx_launcher.tracing_scrape import MOST_CONNECTIONS, serve_metrics

pytestmark = pytest.mark.anyio


async def told() -> str:
    return "a_metric 1\n"


def free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        port: int = asking.getsockname()[1]
        return port


async def connected(port: int) -> SocketStream:
    with anyio.fail_after(20):
        while True:
            try:
                return await anyio.connect_tcp("127.0.0.1", port)
            except OSError:  # it does not listen yet
                await anyio.lowlevel.checkpoint()


async def heard(stream: SocketStream) -> bytes:
    text = b""
    with anyio.fail_after(20):
        try:
            while True:
                text += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return text


async def scraped(port: int) -> bytes:
    async with await connected(port) as stream:
        try:
            await stream.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        except anyio.BrokenResourceError:
            return b""
        return await heard(stream)


async def test_those_beyond_the_limit_are_turned_away_and_later_ones_served() -> None:
    port, warned = free_port(), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_metrics, port, told, warned.append)
        idle = [await connected(port) for _ in range(MOST_CONNECTIONS)]
        over = await connected(port)
        assert await heard(over) == b""
        await over.aclose()
        for stream in idle:
            await stream.aclose()
        with anyio.fail_after(20):
            while not (answer := await scraped(port)):
                await anyio.lowlevel.checkpoint()
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"a_metric 1\n")
        tasks.cancel_scope.cancel()
    assert not warned


async def test_an_agent_without_descriptors_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing_scrape, "ACCEPT_AGAIN_S", 0.0)
    again = anyio.Event()

    class Full:
        tried = 0

        async def accept(self) -> SocketStream:
            self.tried += 1
            if self.tried < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            again.set()
            await anyio.sleep_forever()
            raise AssertionError

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tracing_scrape._accept, Full(), anyio.CapacityLimiter(1), told)
        with anyio.fail_after(20):
            await again.wait()
        tasks.cancel_scope.cancel()


async def test_a_port_that_is_taken_is_warned_of() -> None:
    warned: list[str] = []
    with socket.create_server(("", 0)) as taken:
        await serve_metrics(taken.getsockname()[1], told, warned.append)
    assert "cannot be listened on" in warned[0]
