"""While a job runs, its agents write nothing to etcd: leases are kept alive without the raft log."""

from __future__ import annotations

import pytest
from support.etcd_server import EtcdProcess
from support.etcd_view import PROPOSALS, PUTS
from support.stage import stage


@pytest.mark.parametrize(
    "window_s", [5.0, pytest.param(60.0, marks=[pytest.mark.soak, pytest.mark.timeout(120)])]
)
def test_no_raft_write(own_etcd: EtcdProcess, window_s: float) -> None:
    with stage(own_etcd.endpoint) as job:
        options = ("--nnodes", "2", "--nproc-per-node", "2", "--lease-ttl", "3")
        agents = [job.launch(node=f"n{number}", options=options) for number in range(2)]
        ranks = job.up(0, 4)
        before, heard = {name: job.etcd.metric(name) for name in (PROPOSALS, PUTS)}, job.etcd.messages()

        job.for_a_while(window_s)

        after = {name: job.etcd.metric(name) for name in (PROPOSALS, PUTS)}
        renewals = job.etcd.messages()["LeaseKeepAlive"] - heard["LeaseKeepAlive"]
        job.finish(ranks)
        assert [agent.ends() for agent in agents] == [0, 0], job.told()
    assert after == before
    assert renewals >= window_s / 3 * 2, "the agents did renew their leases meanwhile"
