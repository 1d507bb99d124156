"""How a job that did not finish ended, in the words of whoever ended it; and one request to the scheduler (A2 42)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.stage import Agent, Stage

LINKED = str(Path(__file__).parents[1] / "support" / "linked_program.py")
TWO = ("--nnodes", "2", "--nproc-per-node", "1", "--lease-ttl", "3")
HOOK = ("--requeue-command", "scontrol requeue {job}")


def slurm(on: Stage, *, answers: int = 0, **more: str) -> dict[str, str]:
    """The environment of a Slurm job, with a `scontrol` that notes its calls and exits with `answers`."""
    folder = on.folder / "bin"
    folder.mkdir()
    fake = folder / "scontrol"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {on.folder}/calls\necho told to wait\nexit {answers}\n')
    fake.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711", **more}


def calls(on: Stage) -> list[str]:
    noted = on.folder / "calls"
    return noted.read_text().splitlines() if noted.exists() else []


def two_agents(on: Stage, environment: dict[str, str]) -> list[Agent]:
    agents = [
        on.launch(*on.ranks("--saves"), node=f"n{one}", options=(*TWO, *HOOK), environment=environment)
        for one in range(2)
    ]
    on.up(0, 2)
    return agents


def ended(on: Stage, node: str) -> tuple[str, object]:
    """What etcd and the history on that node's disk call the end."""
    lines = (on.folder / "logs" / node / on.run_id / "history.jsonl").read_text().splitlines()
    told = next((one for line in lines if (one := json.loads(line))["record"] == "outcome"), {})
    return on.held()["0/outcome"].value["ending"], told.get("ending")


def test_42_two_agents_that_are_preempted_requeue_once(job: Stage) -> None:
    agents = two_agents(job, slurm(job))
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.ends() for agent in agents] == [143, 143], job.told()
    assert calls(job) == ["requeue 4711"], job.told()
    (last,) = [agent for agent in agents if agent.said("requeued: scontrol requeue 4711: told to wait")]
    assert last.said(rf"job {job.run_id} preempted: told to stop by SIGTERM \(exit code 143"), job.told()
    assert ended(job, str(last.node)) == ("preempted", "preempted")
    assert job.held()["0/requeue"].value["node_id"] == last.node


def test_42_the_time_limit_is_named_and_requeues_once(job: Stage) -> None:
    """All ranks save the same step before Slurm ends the job."""
    environment = slurm(job, SLURM_JOB_END_TIME=str(round(time.time() + 14)))
    agents = [
        job.launch(
            LINKED, str(job.folder), "1000000", node=node, options=(*TWO, *HOOK), environment=environment
        )
        for node in ("n0", "n1")
    ]
    assert [agent.ends() for agent in agents] == [75, 75], job.told()
    assert calls(job) == ["requeue 4711"], job.told()
    for agent in agents:
        assert agent.said(rf"job {job.run_id} stopped at its time limit: the scheduler's time limit is in")
        assert ended(job, str(agent.node)) == ("time_limit", "time_limit")


def test_42_sigterm_at_the_end_of_the_allocation_is_the_time_limit(job: Stage) -> None:
    agents = two_agents(job, slurm(job, SLURM_JOB_END_TIME=str(round(time.time() + 25))))
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.ends() for agent in agents] == [143, 143], job.told()
    assert calls(job) == ["requeue 4711"], job.told()
    assert job.held()["0/outcome"].value["ending"] == "time_limit"


@pytest.mark.parametrize("how", ["ctrl-c", "nvrx stop"])
def test_42_what_a_person_cancels_is_not_requeued(job: Stage, how: str) -> None:
    agents = two_agents(job, slurm(job))
    if how == "ctrl-c":
        for agent in agents:
            agent.signal(signal.SIGINT)
    else:
        job.ask("stop")
    codes = {agent.ends() for agent in agents}
    assert codes == {130 if how == "ctrl-c" else 143}, job.told()
    assert calls(job) == [], job.told()
    assert job.held()["0/outcome"].value["ending"] == "cancelled"
    assert any(agent.said(rf"job {job.run_id} cancelled: ") for agent in agents), job.told()
    assert "0/requeue" not in job.held()


def test_a_person_may_stop_a_job_so_that_it_is_requeued(job: Stage) -> None:
    agents = two_agents(job, slurm(job))
    job.ask("stop", requeue=True)
    assert [agent.ends() for agent in agents] == [75, 75], job.told()
    assert calls(job) == ["requeue 4711"], job.told()


def test_a_scheduler_that_refuses_is_one_warning(job: Stage) -> None:
    agents = two_agents(job, slurm(job, answers=1))
    job.ask("stop", requeue=True)
    assert [agent.ends() for agent in agents] == [75, 75], job.told()
    assert calls(job) == ["requeue 4711"], job.told()
    said = [
        agent.text.count("the job was not requeued: scontrol requeue 4711 exited with code 1")
        for agent in agents
    ]
    assert sorted(said) == [0, 1], job.told()


def test_the_number_of_the_job_must_be_known(job: Stage) -> None:
    agent = job.launch(options=HOOK)
    assert agent.ends() == 2, job.told()
    assert agent.said(r"there is no \$SLURM_JOB_ID to put in for \{job\}")
