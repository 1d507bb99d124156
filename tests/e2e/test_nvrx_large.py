"""Ten thousand ranks, as recorded state: an answer that a person can read, and soon."""

from __future__ import annotations

import json
import time

import anyio
import pytest
from support.etcd_server import EtcdProcess
from support.nvrx_cli import nvrx, on_terminal
from support.recorded_world import CULPRIT, SLOTS, write_world

from nvrx_async.etcd import EtcdClient, EtcdConfig

NODES = 1250
GENEROUS_S = 25.0
"""Measured: 0.4 to 0.6 s of processor time; the bound only tells a flood from an answer on a machine at work."""


@pytest.fixture(scope="module")
def large(etcd: EtcdProcess) -> EtcdProcess:
    async def write() -> None:
        async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client:
            await write_world(client, "large", NODES)

    anyio.run(write)
    return etcd


@pytest.mark.parametrize("verb", ["status", "ranks", "nodes", "why", "rounds"])
def test_a_terminal_is_not_flooded(large: EtcdProcess, verb: str) -> None:
    began_s = time.monotonic()
    answer = on_terminal(verb, "large", etcd=large.endpoint)
    assert time.monotonic() - began_s < GENEROUS_S
    assert answer.code == 0, answer.out
    assert len(answer.lines) <= 130
    assert max(map(len, answer.lines)) <= 80
    if verb in ("status", "ranks", "nodes"):
        assert "more: --all shows them" in answer.plain


def test_a_script_gets_all_of_it(large: EtcdProcess) -> None:
    answer = nvrx("ranks", "large", "-o", "json", etcd=large.endpoint)
    assert len(json.loads(answer.out)["items"]) == NODES * SLOTS
    why = json.loads(nvrx("why", "large", "0", "-o", "json", etcd=large.endpoint).out)
    assert why["root"]["end"]["rank"] == CULPRIT
    assert len(why["consequences"]) == NODES * SLOTS - 1
