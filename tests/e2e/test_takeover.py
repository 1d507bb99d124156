"""All agents of a job are killed with everything they started, their leases end, and the job is started again."""

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

ONE = ("--nproc-per-node", "2", "--lease-ttl", "60")
TWO = ("--nnodes", "2", *ONE)
RUNNING_WITHIN_S = 40.0
"""An agent takes about a second to start; the wait that is spared takes more than two minutes."""


def killed(job: Stage, agents: Sequence[Agent], spared: Sequence[int] = ()) -> None:
    """Kill -9 everything of these agents at once and let their leases end: nothing of them is left to wake up."""
    its = [job.watch(pid) for agent in agents for pid in agent.processes() if pid not in spared]
    for agent in agents:
        agent.freeze()
    for one in its:
        with suppress(ProcessLookupError):  # the agent's end ended it already
            os.kill(one.pid, signal.SIGKILL)
    job.all_gone(its, 5.0)
    for item in [item for key, item in job.held().items() if "/nodes/" in key]:
        job.etcd.revoke(item.lease)
    job.news.clear()


def on_host(job: Stage, node: str, options: Sequence[str]) -> Agent:
    """An agent that believes to be on a host of its own."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--uts", "true"], check=False).returncode
    ):
        pytest.skip("giving an agent another host name takes root and unshare")
    assert job.endpoint is not None
    renamed = ("unshare", "--uts", "sh", "-c", f'hostname host-{node} && exec "$@"', "sh")
    meeting = ("--rdzv-endpoint", job.endpoint, "--rdzv-id", job.run_id, "--local-addr", "127.0.0.1")
    logs = ("--node-id", node, "--log-dir", str(job.folder / "logs" / node))
    agent = job.start(
        *renamed, sys.executable, "-m", "nvrx_launcher", *meeting, *logs, *options, *job.ranks()
    )
    agent.node = node
    return agent


def test_the_only_agent_starts_again_and_waits_for_nothing(job: Stage) -> None:
    first = job.launch(options=ONE)
    job.up(0, 2)
    killed(job, [first])

    began_s = time.monotonic()
    second = job.launch(options=ONE)
    again = job.up(0, 2, bound_s=RUNNING_WITHIN_S)
    print(f"running {time.monotonic() - began_s:.2f} s after its start")
    assert any(key.startswith("1/nodes/") for key in job.held()), "in the next attempt"
    assert not second.said("waiting")
    job.finish(again)
    assert second.ends() == 0, job.told()


def test_what_the_killed_agent_left_is_ended_before_the_next_attempt_begins(job: Stage) -> None:
    """A rank's helper in a session of its own has lost agent, keeper and rank; only its mark tells whose it is."""
    first = job.launch(*job.ranks("--offspring"), options=ONE)
    ranks = job.up(0, 2)
    left = [job.watch(news.pid) for news in job.tell("grandchild", 0, 2)]
    assert not {one.pid for one in left} & {news.pid for news in ranks}
    killed(job, [first], spared=[one.pid for one in left])

    second = job.launch(options=ONE)
    job.up(0, 2, bound_s=RUNNING_WITHIN_S)
    assert not any(one.alive for one in left)
    second.signal(signal.SIGTERM)
    assert second.ends() == 143, job.told()


def test_one_agent_proves_all_that_ran_on_its_host(job: Stage) -> None:
    first = [job.launch(node=f"n{number}", options=TWO) for number in range(2)]
    job.up(0, 4)
    killed(job, first)
    alone = job.launch(node="n0", options=ONE)
    job.up(0, 2, bound_s=RUNNING_WITHIN_S)
    assert not alone.said("left no verdict")
    alone.signal(signal.SIGTERM)
    assert alone.ends() == 143, job.told()


@pytest.mark.parametrize("options", [TWO, (*TWO, "--max-restarts", "7")], ids=["the same command", "another"])
def test_two_agents_both_start_again(job: Stage, options: Sequence[str]) -> None:
    first = [on_host(job, f"n{number}", TWO) for number in range(2)]
    job.up(0, 4)
    killed(job, first)

    one = on_host(job, "n0", options)
    one.says(r"waiting: .*not proven dead: n1 \(host host-n1\)")
    began_s = time.monotonic()
    other = on_host(job, "n1", options)
    again = job.up(0, 4, bound_s=RUNNING_WITHIN_S)
    print(f"running {time.monotonic() - began_s:.2f} s after the second start")
    assert any(key.startswith("1/nodes/") for key in job.held()), "in the next attempt"
    job.finish(again)
    assert [one.ends(), other.ends()] == [0, 0], job.told()


def test_one_that_stays_away_is_waited_for_and_the_line_says_what_ends_the_wait(job: Stage) -> None:
    options = ("--nnodes", "1:2", "--join-timeout", "600", *ONE)
    first = [on_host(job, f"n{number}", options) for number in range(2)]
    job.up(0, 4)
    killed(job, first)

    waits = on_host(job, "n0", options)
    waits.says(
        r"waiting: attempt 0 of run id \S+ left no verdict and has no node; not proven dead: n1 \(host host-n1\); "
        r"that takes an agent started there, else their ranks are surely dead \d+ s after that was seen; "
        r"then attempt 1 begins \(--takeover if you know that they are dead\)"
    )
    knows = on_host(job, "n2", (*options, "--takeover"))
    job.up(0, 4, bound_s=RUNNING_WITHIN_S)
    for agent in (waits, knows):
        agent.signal(signal.SIGTERM)
    assert {waits.ends(), knows.ends()} == {143}, job.told()


LATE = r"it had ended before this node was back in it; this node ends with the same exit code"


def test_who_comes_back_when_the_job_has_just_ended_ends_with_it(job: Stage) -> None:
    """It was killed when its ranks were done, and its registration still stands; nobody waits for a second attempt."""
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--lease-ttl", "60", "--join-timeout", "600")
    agents = [job.launch(node=f"n{number}", options=options) for number in range(2)]
    ranks = job.up(0, 2)
    stays = job.coordinator(*agents)
    (lost,) = (agent for agent in agents if agent is not stays)
    with job.etcd.next_change(f"/nvrx/v1/{job.run_id}/0/rounds/0/done/") as done:
        job.finish([rank for rank in ranks if rank.node == lost.node])
        done()
    lost.signal(signal.SIGKILL)
    lost.ends()
    job.finish([rank for rank in ranks if rank.node == stays.node])
    assert stays.ends() == 0, job.told()
    again = job.launch(node=lost.node, options=options)
    assert again.ends() == 0, job.told()
    assert again.said(rf"job {job.run_id} finished\n +{LATE}")
    assert job.held()["current"].value["attempt"] == 0


@pytest.mark.parametrize("code", [0, 1])
def test_who_waits_for_its_place_while_the_job_ends_ends_with_it(job: Stage, code: int) -> None:
    """Nobody can tell whether its predecessor lives: the agent waits for the lease, and the job ends meanwhile."""
    options = ("--nnodes", "1:2", "--nproc-per-node", "1", "--lease-ttl", "60", "--join-timeout", "600")
    options = (*options, "--rdzv-conf", "last_call_timeout=0.1")
    stays = job.launch(node="n0", options=options)
    ranks = job.up(0, 1)
    other = next(item for key, item in job.held().items() if key.endswith("nodes/n0"))
    process = {**other.value["process"], "boot_id": "another", "tag": f"{job.run_id}/00"}
    job.etcd.put(
        f"/nvrx/v1/{job.run_id}/0/nodes/n1",
        {**other.value, "node_id": "n1", "incarnation": "0", "process": process},
    )
    waits = job.launch(node="n1", options=options)
    waits.says("node id n1 is held by another agent, perhaps a dead one")
    os.kill(ranks[0].pid, signal.SIGKILL if code else signal.SIGUSR1)
    assert [stays.ends(), waits.ends()] == [code, code], job.told()
    assert waits.said(LATE)
    assert job.held()["current"].value["attempt"] == 0
