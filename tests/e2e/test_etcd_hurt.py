"""etcd is hurt while a job runs: leases lost, history compacted, database full."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support.etcd_server import EtcdProcess, etcd_process
from support.stage import Stage, stage

from nvrx_async.etcd.wire import grpc, messages, stubs

OPTIONS = ("--nnodes", "2", "--nproc-per-node", "1", "--lease-ttl", "3", "--etcd-embedded", "off")
QUOTA_BYTES = 4 << 20


@pytest.fixture
def on_own_etcd(own_etcd: EtcdProcess) -> Iterator[Stage]:
    with stage(own_etcd.endpoint) as made:
        yield made


def two(on: Stage, *options: str) -> list:
    return [on.launch(node=f"n{number}", options=(*OPTIONS, *options)) for number in range(2)]


def test_a_compaction_during_a_run_costs_nothing(on_own_etcd: Stage, own_etcd: EtcdProcess) -> None:
    agents = two(on_own_etcd, "--max-restarts", "1")
    ranks = on_own_etcd.up(0, 2)
    with grpc.insecure_channel(own_etcd.endpoint) as channel:
        kv = stubs.KVStub(channel)
        for _ in range(100):
            newest = kv.Put(messages.PutRequest(key=b"/other", value=b"x"), timeout=10).header.revision
        for agent in agents:
            agent.freeze()  # what they watch is compacted away before they read on
        kv.Compact(messages.CompactionRequest(revision=newest, physical=True), timeout=10)
        for agent in agents:
            agent.signal(signal.SIGCONT)
    os.kill(ranks[0].pid, signal.SIGKILL)
    on_own_etcd.finish(on_own_etcd.up(1, 2))
    assert [agent.ends() for agent in agents] == [0, 0], on_own_etcd.told()


def test_a_full_etcd_is_named_with_what_to_do() -> None:
    with (
        etcd_process(flags=(f"--quota-backend-bytes={QUOTA_BYTES}",)) as server,
        stage(server.endpoint) as made,
    ):
        with (
            grpc.insecure_channel(server.endpoint) as channel,
            pytest.raises(grpc.RpcError, match="space exceeded"),
        ):
            for number in range(64):
                put = messages.PutRequest(key=b"/big/%d" % number, value=bytes(1 << 20))
                stubs.KVStub(channel).Put(put, timeout=10)
        agent = made.launch(options=("--nnodes", "1", "--etcd-embedded", "off"))
        assert agent.ends() in (3, 75), made.told()
        assert agent.said("NOSPACE"), made.told()
        assert agent.said("etcdctl alarm disarm"), made.told()
