"""Row 67: rank 0 works in a section while the others wait in a barrier, for longer than `--hang-timeout`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stage import Agent, Stage

PROGRAM = Path(__file__).parents[1] / "support" / "saving_training.py"
OPTIONS = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "1", "--warm-workers", "off")
LIMITS = ("--hang-timeout", "2", "--hang-startup-timeout", "30", "--startup-grace", "3")


def saving(on: Stage, seconds: float, limit_s: float) -> list[Agent]:
    """Two agents; rank 0 is on the first one's node or on the other's, as they come."""
    return [agent(on, f"n{number}", seconds, limit_s) for number in range(2)]


def agent(on: Stage, node: str, seconds: float, limit_s: float, *more: str) -> Agent:
    return on.launch(
        str(PROGRAM),
        str(seconds),
        str(limit_s),
        node=node,
        options=(*OPTIONS, *LIMITS, *more),
        environment={"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.timeout(120)
def test_67_who_waits_for_a_rank_in_a_section_is_not_hung(job: Stage) -> None:
    agents = saving(job, 7.0, 60.0)
    assert [agent.ends(bound_s=90) for agent in agents] == [0, 0], job.told()
    held = job.held()
    assert held["0/round"].value["number"] == 0, job.told()
    told = r"rank 0 on n\d \(host \S+\) has been in section save for \S+ s \(limit 1 min\), "
    waits = [
        agent
        for agent in agents
        if agent.said(told + r"2 ranks wait for it on this node: not taken for hung")
    ]
    wait = [
        agent
        for agent in agents
        if agent.said(told + r"rank 1 waits for it on this node: not taken for hung")
    ]
    assert sorted((len(wait), len(waits))) == [1, 1], job.told()
    assert all(agent.text.count("not taken for hung") == 1 for agent in agents), "once for each section"
    assert job.left() == []


@pytest.mark.timeout(120)
def test_67_where_agents_do_not_know_each_other_they_know_where_rank_0_is(job: Stage) -> None:
    """As in a world of a thousand nodes; the coordinator alone, here that of rank 0, knows who is in it."""
    parts = (4.0, 60.0, "--etcd-outage-limit", "0")
    first = agent(job, "n0", *parts)
    first.says("1 of 2 nodes joined")
    agents = [first, agent(job, "n1", *parts)]
    assert [one.ends(bound_s=90) for one in agents] == [0, 0], job.told()
    assert job.held()["0/round"].value["number"] == 0, job.told()


@pytest.mark.timeout(120)
def test_67_who_takes_longer_than_its_section_allows_is_the_culprit(job: Stage) -> None:
    agents = saving(job, 1e6, 5.0)
    assert [agent.ends(bound_s=90) for agent in agents] == [0, 0], job.told()
    held = job.held()
    root = held["0/rounds/0/end"].value["root"]
    assert (root["kind"], root["end"]["rank"]) == ("hang", 0), root
    assert "has been in section save for 5." in root["sentence"], root
    assert "while 3 ranks wait for it" in root["sentence"], root
    assert held["0/interrupt/0"].value["rank"] == 0, "no rank that waited was declared hung first"
    assert held["0/round"].value["number"] == 1
    assert job.left() == []
