"""`nvrx why` for faults that are not a rank's own: agents, etcd, memory, collectives that do not fit together."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.etcd_server import free_ports
from support.nvrx_cli import nvrx
from support.stage import Agent, Stage

SUPPORT = Path(__file__).parents[1] / "support"
LINKED, SKIPPING = str(SUPPORT / "linked_program.py"), str(SUPPORT / "skipping_training.py")
COMMON = ("--max-restarts", "3", "--warm-workers", "off", "--lease-ttl", "3")
LIMITS = ("--hang-timeout", "20", "--hang-startup-timeout", "60", "--startup-grace", "3")

MEMORY_IS_OUT = """
import os, signal, sys
from pathlib import Path
import nvrx_async
with nvrx_async.connect() as rank:
    for step in rank.steps(5):
        if (rank.round, rank.rank, step) == (0, rank.world_size - 1, 3):
            Path(sys.argv[1]).write_text("oom 1\\noom_kill 1\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        rank.should_stop(step)
    if rank.round == 0:
        signal.pause()
"""
"""What the kernel does to a rank of a memory cgroup that is full: it counts, and kills."""

AGENT_IN_A_CGROUP = """
import sys
from pathlib import Path
from nvrx_launcher import cgroup
folder = Path(sys.argv.pop(1))
cgroup.oom_kills.__defaults__ = (folder, folder / "membership")
from nvrx_launcher.launch_cli import main
sys.exit(main())
"""


def why(on: Stage, *arguments: str, etcd: str | None = None) -> dict:
    answer = nvrx("why", on.run_id, *arguments, "-o", "json", etcd=etcd or on.endpoint)
    assert answer.code in (0, 3), answer
    return json.loads(answer.out)


def start(on: Stage, nodes: int, faults: str, *options: str, steps: int = 1_000_000) -> list[Agent]:
    (on.folder / "steps").mkdir(exist_ok=True)
    return [
        on.launch(
            LINKED,
            str(on.folder / "steps"),
            str(steps),
            node=f"n{number}",
            options=("--nnodes", str(nodes), "--nproc-per-node", "2", *COMMON, *LIMITS, *options),
            environment={"NVRX_FAULTS": faults},
        )
        for number in range(nodes)
    ]


@pytest.mark.parametrize("kind", ["agent_kill", "agent_freeze"])
def test_an_agent_that_is_gone_is_the_cause_where_another_one_is_there_to_say_so(
    job: Stage, kind: str
) -> None:
    agents = start(job, 2, f"{kind} rank=3 step=20")
    agents[0].says(r"round 0 (failed|is over|ended)")
    assert nvrx("wait", job.run_id, "--for", "round=1", "--timeout", "0.1s", etcd=job.endpoint).code == 1
    found = why(job, "0")
    assert (found["root"]["kind"], found["root"]["node_id"], found["root"]["culprit"]) == (
        "node_lost",
        "n1",
        True,
    )
    assert "its lease ended" in found["headline"]
    assert found["level"] == "in_job"
    assert "not billed" in found["decision"]
    assert {one["rank"] for one in found["consequences"]} == {0, 1}
    agents[1].signal(signal.SIGKILL)
    agents[0].signal(signal.SIGTERM)
    agents[0].ends()


def test_a_rank_that_hangs_is_named_before_it_is_taken_for_hung(job: Stage) -> None:
    (job.folder / "steps").mkdir()
    agent = job.launch(
        *(LINKED, str(job.folder / "steps"), "1000000"),
        options=("--nproc-per-node", "2", *COMMON, "--hang-timeout", "16", "--startup-grace", "3"),
        environment={"HANGS": "save"},
    )
    agent.says("round 0 runs")
    while not (found := why(job))["silent"]:
        assert found["root"] is None, "it was named when it was taken for hung only"
    first = found["silent"][0]
    assert (first["round"], first["rank"], first["section"], first["step"]) == (0, 1, "save", 20)
    assert 0 < first["due_in_s"] < 16
    told = nvrx("why", job.run_id, etcd=job.endpoint).out
    assert "silent      rank 1 on" in told
    assert "is still in section save" in told
    assert "taken for hung in" in told
    agent.signal(signal.SIGKILL)
    agent.ends()


@pytest.mark.parametrize("kind", ["agent_kill", "agent_freeze"])
def test_where_no_agent_is_left_the_job_is_abandoned_and_why_says_so(job: Stage, kind: str) -> None:
    with job.etcd.next_deletion(f"/nvrx/v1/{job.run_id}/0/nodes/") as its_lease_ends:
        (agent,) = start(job, 1, f"{kind} rank=1 step=20")
        its_lease_ends()
    found = why(job)
    assert (found["round"], found["root"], found["outcome"]) == (0, None, None)
    assert "all its agents are gone without a word" in found["headline"]
    told = nvrx("why", job.run_id, etcd=job.endpoint).out
    assert "cause" not in told
    events = nvrx("events", job.run_id, etcd=job.endpoint).out
    assert "n0 registered with 2 slots" in events, "though its registration is gone"
    agent.signal(signal.SIGKILL)
    agent.ends()


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_etcd_that_falls_silent_ends_no_round_and_is_told_of(alone: Stage, nodes: int) -> None:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    (alone.folder / "steps").mkdir()
    agents = [
        alone.run(
            *("--rdzv-endpoint", endpoint, "--rdzv-id", alone.run_id, "--node-id", f"n{number}"),
            *("--nnodes", str(nodes), "--nproc-per-node", "2", *COMMON, *LIMITS),
            *("--log-dir", str(alone.folder / "logs")),
            *(LINKED, str(alone.folder / "steps"), "1000000"),
            environment={
                "NVRX_FAULTS": "; ".join(f"etcd_stop rank={rank} step=20" for rank in range(2 * nodes))
            },
        )
        for number in range(nodes)
    ]
    for agent in agents:
        agent.says("etcd does not answer; ranks run on")
    folder = ("--log-dir", str(alone.folder / "logs"))
    found = why(alone, *folder, etcd=endpoint)
    assert found["root"] is None
    assert "etcd does not answer; ranks run on" in found["headline"]
    events = nvrx("events", alone.run_id, *folder, etcd=endpoint)
    assert events.code == 3
    (line,) = [one for one in dict.fromkeys(text[10:] for text in events.lines) if one.startswith("etcd ")]
    assert "etcd does not answer; ranks run on" in line
    for agent in agents:
        os.kill(agent.pid, signal.SIGKILL)
        agent.ends()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_that_the_kernel_killed_for_memory(job: Stage, tmp_path: Path, nodes: int) -> None:
    script = tmp_path / "memory.py"
    script.write_text(MEMORY_IS_OUT)
    events = tmp_path / "slice" / "memory.events"
    events.parent.mkdir()
    events.write_text("oom 0\noom_kill 0\n")
    (tmp_path / "membership").write_text("0::/slice\n")
    agents = [
        job.start(
            *(sys.executable, "-c", AGENT_IN_A_CGROUP, str(tmp_path)),
            *("--rdzv-endpoint", str(job.endpoint), "--rdzv-id", job.run_id, "--node-id", f"n{number}"),
            *("--log-dir", str(job.folder / "logs"), "--nnodes", str(nodes), "--nproc-per-node", "2"),
            *(*COMMON, *LIMITS, str(script), str(events)),
        )
        for number in range(nodes)
    ]
    assert [agent.ends() for agent in agents] == [0] * nodes, job.told()
    found = why(job, "0")
    assert (found["root"]["kind"], found["root"]["end"]["rank"]) == ("out_of_memory", 2 * nodes - 1)
    assert found["headline"].endswith("was killed by the kernel, out of memory")
    assert "restart 1 of --max-restarts 3" in found["decision"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("nodes", "ranks"), [(1, 3), (2, 2)])
def test_a_rank_that_left_out_a_collective(job: Stage, nodes: int, ranks: int) -> None:
    """Told by torch, where it is asked to compare collectives: each rank raises, and one of them is the odd one out."""
    culprit = nodes * ranks - 1
    agents = [
        job.launch(
            SKIPPING,
            "60",
            node=f"n{number}",
            options=("--nnodes", str(nodes), "--nproc-per-node", str(ranks), *COMMON),
            environment={"NVRX_FAULTS": f"skip rank={culprit} step=20", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        )
        for number in range(nodes)
    ]
    assert [agent.ends(bound_s=120) for agent in agents] == [0] * nodes, job.told()
    found = why(job, "0")
    root = found["root"]
    assert (root["kind"], root["end"]["rank"], root["node_id"]) == (
        "collective_missed",
        culprit,
        f"n{nodes - 1}",
    )
    assert root["culprit"]
    assert "was in another collective than all others: ALLREDUCE of [8] Float" in found["headline"]
    assert "Detected mismatch between collectives" in found["error_line"]
    assert "restart 1 of --max-restarts 3" in found["decision"]
