"""A job whose etcd is gone with it: its log folder tells where the time of its restarts went."""

from __future__ import annotations

import json
from pathlib import Path

from support.etcd_server import etcd_process
from support.nvrx_cli import Answer, nvrx
from support.stage import Stage, stage

LINKED = str(Path(__file__).parents[1] / "support" / "linked_program.py")
STEPS = [
    "told",
    "stopped",
    "reaped",
    "reported",
    "ended",
    "sealed",
    "released",
    "started",
    "connected",
    "first step",
]

COVERED = 0.95


def asked(*arguments: str, logs: Path) -> Answer:
    """Without an etcd that knows the job."""
    answer = nvrx(*arguments, "--log-dir", str(logs), etcd=None)
    assert "history.jsonl remembers" in answer.err, answer
    return answer


def shows_all(waterfall: dict, *, nodes: int) -> None:
    """Every step by its own name, hence the whole time in named steps; and the restart came to its end."""
    steps = waterfall["steps"]
    assert [step["name"] for step in steps] == STEPS
    assert sum(step["seconds"] for step in steps) >= COVERED * waterfall["seconds"] > 0
    assert (waterfall["complete"], waterfall["missing"]) == (True, [])
    assert any(step["last"] for step in steps) == (nodes > 1)


def test_a_standalone_job_that_has_ended(alone: Stage) -> None:
    steps, logs = alone.folder / "steps", alone.folder / "logs"
    steps.mkdir()
    agent = alone.run(
        *("--standalone", "--rdzv-id", "seen", "--nproc-per-node", "2", "--max-restarts", "2"),
        *("--warm-workers", "off", "--log-dir", str(logs), LINKED, str(steps), "40"),
        environment={"NVRX_FAULTS": "sigkill rank=1 step=20"},
    )
    assert agent.ends() == 0, alone.told()
    trace = json.loads(asked("trace", "seen", "-o", "json", logs=logs).out)
    assert len(trace["trace_id"]) == 32
    assert (trace["round"], len(trace["ending"]), len(trace["starting"])) == (1, 1, 1)
    shows_all(trace["restart"], nodes=1)
    why = json.loads(asked("why", "seen", "-o", "json", logs=logs).out)
    assert why["waterfall"] == trace["restart"]
    assert why["interrupted_by"]
    text = asked("trace", "seen", logs=logs).out
    assert "from the fault to the first step" in text
    assert "first step" in text.splitlines()[-2]


def test_the_folder_of_the_node_that_led_tells_of_all() -> None:
    """The etcd is another machine's, and gone; each node has a folder of its own."""
    with etcd_process() as server, stage(server.endpoint) as job:
        steps = job.folder / "steps"
        steps.mkdir()
        agents = [
            job.launch(
                *(LINKED, str(steps), "40"),
                node=f"n{number}",
                options=("--nnodes", "2", "--max-restarts", "2", "--warm-workers", "off"),
                environment={"NVRX_FAULTS": "sigkill rank=1 step=20"},
            )
            for number in range(2)
        ]
        job.until((steps / "0.0").exists, "steps are made")
        leader = job.coordinator(*agents)
        assert [agent.ends() for agent in agents] == [0, 0], job.told()
        for agent in agents:
            logs = job.folder / "logs" / str(agent.node)
            trace = json.loads(asked("trace", job.run_id, "-o", "json", logs=logs).out)
            of_all = agent is leader
            shows_all(trace["restart"], nodes=2 if of_all else 1)
            assert {node["node_id"] for node in trace["ending"]} == ({"n0", "n1"} if of_all else {agent.node})
