"""The agent's socket under everything that may come to it."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nvrx_async.ranklink import agent as agent_side
from nvrx_async.ranklink import frames
from nvrx_async.ranklink.agent import RankLinkServer
from nvrx_async.ranklink.messages import Hello, StopAt, from_wire, to_wire


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[RankLinkServer, str, list[str]]]:
    warnings: list[str] = []
    path = str(folder / "agent.sock")
    server = RankLinkServer(path, warnings.append)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.serve)
        yield server, path, warnings
        tasks.cancel_scope.cancel()


def hello(rank: int = 0, number: int = 0) -> bytes:
    return frames.encode(to_wire(Hello("rank", os.getpid(), number, rank)))


async def closed(stream) -> bool:
    with anyio.fail_after(5):
        try:
            return await stream.receive() == b""
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True


async def until_greeted(server: RankLinkServer, count: int) -> None:
    with anyio.fail_after(5):
        while len(server.ranks) < count:  # noqa: ASYNC110 - a server tells nobody of greetings
            await anyio.sleep(0.01)


async def stop_of(stream) -> StopAt:
    decoder = frames.Decoder()
    with anyio.fail_after(5):
        while True:
            for raw in decoder.feed(await stream.receive()):
                message = from_wire(raw)
                assert isinstance(message, StopAt)
                return message


async def test_ranks_of_the_round_are_told_where_to_stop(tmp_path):
    async with serving(tmp_path) as (server, path, warnings):
        async with await anyio.connect_unix(path) as mine, await anyio.connect_unix(path) as older:
            await mine.send(hello(1, 5))
            await older.send(hello(2, 4))
            await until_greeted(server, 2)
            await server.tell_stop(5, 17)
            assert await stop_of(mine) == StopAt(5, 17)
            with anyio.move_on_after(0.05):
                await older.receive()
                pytest.fail("an older round was told")
        assert not warnings


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff rest",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x02[]",
        b"\0\0\0\x03{,}",
        frames.encode({"is": "nothing we know"}),
        frames.encode({"is": "hello", "role": 3, "pid": 1, "round": 0, "rank": 0}),
        b"\x80\x04\x95 pickled",
    ],
)
async def test_a_bad_frame_closes_that_connection_only(tmp_path, garbage):
    async with serving(tmp_path) as (server, path, warnings):
        async with await anyio.connect_unix(path) as good, await anyio.connect_unix(path) as bad:
            await good.send(hello())
            await until_greeted(server, 1)
            for _ in range(2):
                async with await anyio.connect_unix(path) as again:
                    await again.send(garbage)
                    assert await closed(again)
            await bad.send(garbage)
            assert await closed(bad)
            await server.tell_stop(0, 3)
            assert await stop_of(good) == StopAt(0, 3)
        assert len(warnings) == 1


async def test_a_thousand_connections_disturb_nobody(tmp_path):
    async with serving(tmp_path) as (server, path, warnings):
        async with await anyio.connect_unix(path) as good:
            await good.send(hello())
            await until_greeted(server, 1)
            refused = 0
            for _ in range(10):
                flood = []
                for _ in range(100):
                    one = socket.socket(socket.AF_UNIX)
                    one.settimeout(0)
                    try:
                        one.connect(path)
                    except BlockingIOError:
                        refused += 1
                    flood.append(one)
                await server.tell_stop(0, 3)
                assert await stop_of(good) == StopAt(0, 3)
                for one in flood:
                    one.close()
        assert len(warnings) <= 1


FLOOD = """
import os, socket, sys
if sys.argv[2] != "same":
    os.setuid(int(sys.argv[2]))
held = []
for _ in range(int(sys.argv[3])):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    held.append(one)
print("connected", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def flood(path: str, user: str, count: int) -> AsyncIterator[None]:
    """Another process that holds this many connections at once."""
    command = [sys.executable, "-c", FLOOD, path, user, str(count)]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None
        with anyio.fail_after(30):
            assert (await process.stdout.receive()).strip() == b"connected"
        yield
        process.kill()


async def test_a_thousand_connections_at_once_are_refused_beyond_the_limit(tmp_path):
    async with serving(tmp_path) as (server, path, warnings), await anyio.connect_unix(path) as good:
        await good.send(hello())
        await until_greeted(server, 1)
        async with flood(path, "same", 1000):
            await server.tell_stop(0, 3)
            assert await stop_of(good) == StopAt(0, 3)
        assert [text for text in warnings if "connections" in text] == warnings
        assert len(warnings) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
async def test_a_process_of_another_user_is_turned_away(tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        async with serving(Path(folder)) as (server, path, warnings), await anyio.connect_unix(path) as good:
            os.chmod(path, 0o666)
            await good.send(hello())
            await until_greeted(server, 1)
            async with flood(path, "65534", 3):
                await server.tell_stop(0, 3)
                assert await stop_of(good) == StopAt(0, 3)
        assert len(warnings) == 1
        assert "user 65534" in warnings[0]


async def test_one_connection_too_many_is_refused_and_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_side, "MOST_CONNECTIONS", 2)
    async with serving(tmp_path) as (server, path, warnings):
        async with await anyio.connect_unix(path) as first, await anyio.connect_unix(path) as second:
            await first.send(hello(0))
            await second.send(hello(1))
            await until_greeted(server, 2)
            for _ in range(3):
                async with await anyio.connect_unix(path) as third:
                    assert await closed(third)
        assert len(warnings) == 1
        assert "connections" in warnings[0]


async def test_a_slow_writer_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_side, "HELLO_WITHIN_S", 0.1)
    async with serving(tmp_path) as (_, path, warnings):
        async with await anyio.connect_unix(path) as slow:
            await slow.send(hello()[:7])
            assert await closed(slow)
        assert "hello" in warnings[0]


async def test_another_user_is_turned_away(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_side, "_peer_uid", lambda _: 4242)
    async with serving(tmp_path) as (_, path, warnings):
        async with await anyio.connect_unix(path) as foreign:
            assert await closed(foreign)
        assert "4242" in warnings[0]


async def test_the_credentials_are_the_kernels(tmp_path):
    async with serving(tmp_path) as (server, path, warnings):
        async with await anyio.connect_unix(path) as mine:
            await mine.send(hello())
            await until_greeted(server, 1)
        assert not warnings
        assert os.stat(path).st_mode & 0o777 == 0o600


async def test_a_reader_that_does_not_read_costs_only_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_side, "SEND_WITHIN_S", 0.05)
    async with serving(tmp_path) as (server, path, _), await anyio.connect_unix(path) as deaf:
        await deaf.send(hello())
        await until_greeted(server, 1)
        with anyio.fail_after(20):
            while server.ranks:
                for _ in range(500):
                    await server.tell_stop(0, 3)
                    if not server.ranks:
                        break
