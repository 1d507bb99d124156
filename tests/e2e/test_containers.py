"""Agents in containers that are restarted: a new pid namespace each time, the network namespace that of the pod."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from support.stage import Agent, Stage

OPTIONS = ("--nnodes", "2", "--nproc-per-node", "1", "--lease-ttl", "60", "--join-timeout", "600")
RUNNING_WITHIN_S = 40.0
"""The lease takes a minute, and what is waited for where nobody can prove anything more than three."""


def contained(job: Stage, node: str, options: Sequence[str] = OPTIONS) -> Agent:
    """An agent as first process of a pid namespace of its own: what it starts ends with it."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("a pid namespace takes root and unshare")
    assert job.endpoint is not None
    meeting = ("--rdzv-endpoint", job.endpoint, "--rdzv-id", job.run_id, "--local-addr", "127.0.0.1")
    logs = ("--node-id", node, "--log-dir", str(job.folder / "logs" / node), "--warm-workers", "off")
    agent = job.start(
        *unshare, sys.executable, "-m", "nvrx_launcher", *meeting, *logs, *options, *job.ranks()
    )
    agent.node = node
    return agent


def ended(job: Stage, agent: Agent) -> None:
    """The container ends: its first process is killed, which ends all others."""
    its = [job.watch(pid) for pid in agent.processes()]
    agent.signal(signal.SIGKILL)
    job.all_gone(its, 5.0)


def test_a_container_that_starts_again_waits_for_no_lease(job: Stage) -> None:
    stays, falls = contained(job, "n0"), contained(job, "n1")
    job.up(0, 2)
    ended(job, falls)
    began_s = time.monotonic()
    again = contained(job, "n1")
    ranks = job.tell("up", 1, 2, bound_s=RUNNING_WITHIN_S)
    print(f"running {time.monotonic() - began_s:.2f} s after the second start")
    for pid in [pid for agent in (stays, again) for pid in agent.processes() if pid != agent.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)  # the ranks told their pids as their container sees them
    assert {one.node for one in ranks} == {"n0", "n1"}
    assert [stays.ends(), again.ends()] == [0, 0], job.told()


@pytest.mark.parametrize("leases", ["run", "ended"])
def test_a_job_whose_containers_all_start_again_goes_on_at_once(job: Stage, leases: str) -> None:
    first = [contained(job, name) for name in ("n0", "n1")]
    job.up(0, 2)
    for agent in first:
        ended(job, agent)
    attempt, number = (1, 0) if leases == "ended" else (0, 1)
    for item in [item for key, item in job.held().items() if "/nodes/" in key and leases == "ended"]:
        job.etcd.revoke(item.lease)
    job.news.clear()
    began_s = time.monotonic()
    again = [contained(job, name) for name in ("n0", "n1")]
    job.tell("up", number, 2, bound_s=RUNNING_WITHIN_S)
    print(f"running {time.monotonic() - began_s:.2f} s after the second start")
    assert any(key.startswith(f"{attempt}/nodes/") for key in job.held())
    for agent in again:
        ended(job, agent)


def test_a_container_that_is_frozen_is_not_taken_for_dead(job: Stage) -> None:
    stays, frozen = contained(job, "n0"), contained(job, "n1")
    job.up(0, 2)
    for pid in frozen.processes():
        os.kill(pid, signal.SIGSTOP)
    second = contained(job, "n1")
    second.says("node id n1 is held by another agent, perhaps a dead one")
    job.for_a_while(4.0)  # longer than a proof takes
    assert job.held()["0/nodes/n1"].value["process"]["pid"] == 1
    assert not any("/round" in key and item.value.get("number") == 1 for key, item in job.held().items())
    for agent in (second, frozen, stays):
        ended(job, agent)
