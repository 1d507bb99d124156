"""What a person asks of a running job through `control/`: the effect, who did it, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

from support.stage import Agent, Stage

LINKED = str(Path(__file__).parents[1] / "support" / "linked_program.py")
TWO = ("--nnodes", "2", "--nproc-per-node", "1", "--lease-ttl", "3")


def agents_of(on: Stage, *program: str, nodes: int, options: tuple[str, ...]) -> list[Agent]:
    return [on.launch(*program, node=f"n{number}", options=options) for number in range(nodes)]


def history(on: Stage, node: str) -> list[dict[str, object]]:
    lines = (on.folder / "logs" / node / on.run_id / "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_stop_ends_all_agents_and_says_who_asked(job: Stage) -> None:
    agents = agents_of(job, *job.ranks("--saves"), nodes=2, options=TWO)
    job.up(0, 2)
    job.ask("stop")
    assert [agent.ends() for agent in agents] == [143, 143], job.told()
    assert len(job.tell("saved", 0, 2)) == 2
    for agent in agents:
        assert agent.said(r"stop, asked by ada@desk \(maintenance\), is done: the job stops"), job.told()
        assert agent.said(rf"job {job.run_id} cancelled: stopped by ada@desk: maintenance \(exit code 143"), (
            job.told()
        )
    held = job.held()
    assert held["0/outcome"].value["reason"] == "stopped by ada@desk: maintenance"
    answered = held["0/control/1"].value
    assert (answered["phase"], bool(answered["answered_utc"])) == ("done", True)
    (told,) = [line for line in history(job, "n1") if line["record"] == "command"]
    assert (told["id"], told["by"], told["verb"]) == ("1", "ada@desk", "stop")


def test_stop_with_requeue_exits_with_75(job: Stage) -> None:
    agent = job.launch(*job.ranks("--saves"))
    job.up(0, 1)
    job.ask("stop", requeue=True)
    assert agent.ends() == 75, job.told()


def test_ranks_that_ask_should_stop_end_at_one_step_and_start_again(job: Stage) -> None:
    agents = agents_of(job, LINKED, str(job.folder), "2000", nodes=2, options=TWO)
    agents[0].says("steps are made")
    job.ask("restart")
    for agent in agents:
        agent.says("round 1 runs")
    saved = [(job.folder / f"saved.{rank}").read_text() for rank in range(2)]
    assert saved[0] == saved[1]
    agents[1].says(r"round 0 ended: restart asked by ada@desk: maintenance")
    assert agents[1].said(r"asked for, not billed"), "although --max-restarts is 0"
    assert "0/rounds/0/interrupt" not in job.held(), "all ended by themselves"
    job.ask("stop", name="2")
    assert [agent.ends() for agent in agents] == [143, 143], job.told()


def test_a_restart_is_billed_to_nobody(job: Stage) -> None:
    agents = agents_of(job, *job.ranks("--saves"), nodes=2, options=TWO)
    before = {one.rank: one.node for one in job.up(0, 2)}
    job.ask("restart")
    ranks = job.up(1, 2)
    assert {one.rank: one.node for one in ranks} == before
    job.finish(ranks)
    assert [agent.ends() for agent in agents] == [0, 0], job.told()


def test_a_drained_node_gives_its_ranks_to_the_spare_and_waits(job: Stage) -> None:
    agents = agents_of(job, *job.ranks("--saves"), nodes=3, options=TWO)
    before = {one.rank: one.node for one in job.up(0, 2)}
    (spare,) = {"n0", "n1", "n2"} - set(before.values())
    next(agent for agent in agents if agent.node == spare).says("this node is a spare")
    drained = before[0]
    job.ask("drain", drained)
    assert {one.rank: one.node for one in job.up(1, 2)} == {0: spare, 1: before[1]}
    left = next(agent for agent in agents if agent.node == drained)
    left.says(r"round 1 runs: .*this node is a spare")
    assert job.held()[f"0/excluded/{drained}"].value["by"] == "ada@desk"

    job.ask("drain", spare, name="2")
    left.says(r"drain \w+, asked by ada@desk \(maintenance\), is refused: .*1 of at least 2 nodes")
    job.ask("undrain", drained, name="3")
    left.says(r"undrain \w+, asked by ada@desk \(maintenance\), is done")
    job.ask("drain", spare, name="4")
    ranks = job.up(2, 2)
    assert {one.rank: one.node for one in ranks} == before
    job.finish(ranks)
    assert [agent.ends() for agent in agents] == [0, 0, 0], job.told()
