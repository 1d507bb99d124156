"""The probe port, both sides over real sockets, and everything else that may knock there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from nvrx_async.probe import (
    ProbeServer,
    ProtocolError,
    QuestionRefusedError,
    UnreachableError,
    UntrustedError,
    ask,
    server,
    wire,
)
from nvrx_async.ranklink import frames

TOKEN = "a secret that must not travel"


async def echo(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"heard": payload}


async def refuse(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    raise QuestionRefusedError("not me")


async def broken(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    raise ZeroDivisionError("a bug")


async def silent(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    await anyio.sleep_forever()
    raise AssertionError


HANDLERS = {"echo": echo, "refuse": refuse, "broken": broken, "silent": silent}


@asynccontextmanager
async def serving(token: str | None = None, host: str = "127.0.0.1") -> AsyncIterator[tuple[str, list[str]]]:
    warnings: list[str] = []
    async with anyio.create_task_group() as tasks:
        address = await tasks.start(ProbeServer(HANDLERS, token=token, warn=warnings.append).serve, host)
        yield address, warnings
        tasks.cancel_scope.cancel()


async def knock(address: str):
    host, _, port = address.rpartition(":")
    return await anyio.connect_tcp(host, int(port))


async def closed(stream, within_s: float = 5) -> bool:
    """Whether the server closes this connection, whatever it says before."""
    with anyio.fail_after(within_s):
        try:
            while await stream.receive():
                pass
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True
    return True


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_a_question_is_answered(token, host):
    payload = {"number": 1.5, "words": ["ä", None, True], "nested": {"b": 1, "a": 2}}
    async with serving(token, host) as (address, warnings):
        assert await ask(address, "echo", payload, 5, token=token) == {"heard": payload}
    assert not warnings


async def test_many_questions_at_once():
    async with serving(TOKEN) as (address, warnings):
        answers: list[int] = []

        async def one(number: int) -> None:
            said = await ask(address, "echo", {"number": number}, 10, token=TOKEN)
            answers.append(said["heard"]["number"])

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(one, number)
    assert sorted(answers) == list(range(100))
    assert not warnings


async def test_a_patient_question_may_take_its_time_and_ends_with_who_asked(monkeypatch):
    monkeypatch.setattr(server, "CONVERSATION_S", 0.2)
    waiting, left, go = anyio.Event(), anyio.Event(), anyio.Event()

    async def later(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        waiting.set()
        try:
            await go.wait()
        except anyio.get_cancelled_exc_class():
            left.set()
            raise
        return {"late": True}

    warnings: list[str] = []
    made = ProbeServer({"later": later}, token=None, warn=warnings.append, patient=frozenset({"later"}))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            address = await tasks.start(made.serve, "127.0.0.1")
            async with anyio.create_task_group() as asking:
                asking.start_soon(ask, address, "later", {}, 15)
                await waiting.wait()
                asking.cancel_scope.cancel()
            await left.wait()
            answers = []

            async def asked() -> None:
                answers.append(await ask(address, "later", {}, 15))

            async with anyio.create_task_group() as asking:
                asking.start_soon(asked)
                await anyio.sleep(0.5)  # longer than any other conversation may take: that is the subject
                go.set()
            assert answers == [{"late": True}]
            tasks.cancel_scope.cancel()
    assert not warnings


@pytest.mark.parametrize(("theirs", "ours"), [(TOKEN, None), (TOKEN, "another"), (None, TOKEN)])
async def test_without_the_same_token_there_is_no_answer(theirs, ours):
    async with serving(theirs) as (address, warnings):
        with pytest.raises(UntrustedError, match="NVRX_JOB_TOKEN"):
            await ask(address, "echo", {}, 5, token=ours)
    assert len(warnings) == 1


async def test_the_token_never_travels_and_a_changed_question_is_turned_away():
    """A relay between both sides sees everything, and may change what it likes."""
    heard = bytearray()

    async with serving(TOKEN) as (address, _), anyio.create_task_group() as tasks:
        port = int(address.rpartition(":")[2])

        async def relay(reader, writer, *, change):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
            for source, sink in ((inner_reader, writer), (reader, inner_writer), (inner_reader, writer)):
                data = await source.read(1 << 16)
                heard.extend(data)
                sink.write(data.replace(b"penny", b"pound") if change else data)
            for one in (writer, inner_writer):
                one.close()
                await one.wait_closed()

        for change in (False, True):
            server_between = await asyncio.start_server(
                lambda reader, writer, change=change: relay(reader, writer, change=change), "127.0.0.1", 0
            )
            between = server_between.sockets[0].getsockname()[1]
            if change:
                with pytest.raises(UntrustedError):
                    await ask(f"127.0.0.1:{between}", "echo", {"one": "penny"}, 5, token=TOKEN)
            else:
                said = await ask(f"127.0.0.1:{between}", "echo", {"one": "penny"}, 5, token=TOKEN)
                assert said == {"heard": {"one": "penny"}}
            server_between.close()
            await server_between.wait_closed()
        tasks.cancel_scope.cancel()
    assert b"penny" in heard
    assert TOKEN.encode() not in heard


async def test_a_proof_is_good_for_one_conversation_and_one_direction():
    key = wire.key_of(TOKEN)
    body = {"kind": "echo", "payload": {}}
    said = wire.proof(key, wire.CLIENT, ("a", "b"), body)
    assert wire.is_proven(said, key, wire.CLIENT, ("a", "b"), body)
    assert not wire.is_proven(said, key, wire.CLIENT, ("c", "b"), body)
    assert not wire.is_proven(said, key, wire.SERVER, ("a", "b"), body)
    assert not wire.is_proven(None, None, wire.CLIENT, ("a", "b"), body)


async def test_an_unknown_question_and_a_refusal_are_sentences():
    async with serving() as (address, _):
        with pytest.raises(QuestionRefusedError, match="no question of kind 'weather'"):
            await ask(address, "weather", {}, 5)
        with pytest.raises(QuestionRefusedError, match="not me"):
            await ask(address, "refuse", {}, 5)


async def test_a_bug_in_a_handler_costs_its_question_only():
    async with serving() as (address, warnings):
        for _ in range(2):
            with pytest.raises(QuestionRefusedError, match="a bug"):
                await ask(address, "broken", {}, 5)
        assert await ask(address, "echo", {}, 5) == {"heard": {}}
    assert len(warnings) == 1


async def test_nobody_there():
    async with serving() as (address, _):
        pass
    with pytest.raises(UnreachableError, match=address):
        await ask(address, "echo", {}, 5)
    with pytest.raises(UnreachableError, match="no address"):
        await ask("nonsense", "echo", {}, 5)


async def test_an_answer_that_takes_too_long(monkeypatch):
    monkeypatch.setattr(server, "CONVERSATION_S", 0.5)
    async with serving() as (address, warnings):
        with pytest.raises(UnreachableError, match="within"):
            await ask(address, "silent", {}, 0.1)
        with pytest.raises(UnreachableError):
            await ask(address, "silent", {}, 5)
    assert any("longer than" in line for line in warnings)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (frames.LIMIT_BYTES + 1).to_bytes(4, "big"),
        frames.encode({"nonce": 5}),
        frames.encode({"nonce": "x", "body": "no object"}),
        frames.encode({"nonce": "x", "body": {"kind": 1, "payload": {}}, "proof": ""}),
        b"\0\0\0\2[]",
    ],
)
async def test_garbage_costs_its_connection_only(data):
    async with serving() as (address, warnings):
        for _ in range(2):
            async with await knock(address) as stream:
                await stream.send(data)
                assert await closed(stream)
        assert await ask(address, "echo", {}, 5) == {"heard": {}}
    assert len(warnings) == 1


async def test_a_peer_that_says_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr(server, "CONVERSATION_S", 0.1)
    async with serving() as (address, _), await knock(address) as stream:
        assert await closed(stream)


async def test_a_connection_too_many_is_dropped(monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 1)
    async with serving() as (address, warnings), await knock(address) as first:
        await first.receive()  # it is served: the challenge is here
        async with await knock(address) as second:
            assert await closed(second)
    assert len(warnings) == 1


async def test_another_program_at_the_address():
    async def say_hello(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()

    other = await asyncio.start_server(say_hello, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    with pytest.raises(ProtocolError):
        await ask(f"127.0.0.1:{port}", "echo", {}, 5)
    other.close()
    await other.wait_closed()


async def test_an_address_that_is_not_this_hosts_is_served_everywhere():
    async with serving(host="192.0.2.7") as (address, _):
        host, _, port = address.rpartition(":")
        assert host == "192.0.2.7"
        assert await ask(f"127.0.0.1:{port}", "echo", {}, 5) == {"heard": {}}
