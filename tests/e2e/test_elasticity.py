"""Nodes that come, wait, take over and go: spares, growth, replacement, and what bounds all of it."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from support.stage import Agent, News, Stage

LINKED = str(Path(__file__).parents[1] / "support" / "linked_program.py")
COMMON = ("--nproc-per-node", "1", "--lease-ttl", "3")
TWO = ("--nnodes", "2", *COMMON)
ELASTIC = ("--nnodes", "1:3", *COMMON, "--rdzv-conf", "last_call_timeout=0.1")


def three_agents(
    on: Stage, options: tuple[str, ...], *program: str
) -> tuple[dict[str, Agent], list[News], Agent]:
    """Three agents for two nodes: all of them, the ranks of round 0, and the agent that waits."""
    agents = {name: on.launch(*program, node=name, options=options) for name in ("n0", "n1", "n2")}
    ranks = on.up(0, 2)
    (spare,) = set(agents) - {one.node for one in ranks}
    agents[spare].says("round 0 runs: .*this node is a spare")
    return agents, ranks, agents[spare]


def places(ranks: list[News]) -> dict[int, str]:
    return {one.rank: one.node for one in ranks}


def kill_node(agent: Agent) -> None:
    """The agent and all below it at once."""
    for pid in agent.processes():
        os.kill(pid, signal.SIGKILL)


def script(on: Stage, text: str) -> str:
    path = on.folder / "script.py"
    path.write_text(text)
    return str(path)


# Spares -------------------------------------------------------------------------------------------------------


def test_a_spare_ends_with_the_job(job: Stage) -> None:
    agents, ranks, spare = three_agents(job, TWO)
    job.finish(ranks)
    began_s = time.monotonic()
    assert spare.ends() == 0, job.told()
    assert [agent.ends() for agent in agents.values()] == [0, 0, 0], job.told()
    assert time.monotonic() - began_s < 10.0
    assert spare.said(f"job {job.run_id} finished")


def test_all_beyond_max_and_spares_wait_too_also_on_one_host_without_names(job: Stage) -> None:
    agents = [job.launch(options=(*TWO, "--spares", "1", "--max-restarts", "1")) for _ in range(4)]
    ranks = job.up(0, 2)
    seated = {one.node for one in ranks}
    parked = [agent for agent in agents if agent.says(r"this node is (\S+) at")[1] not in seated]
    assert len(parked) == 2, job.told()
    for agent in parked:
        agent.says("round 0 runs: .*this node is a spare")
    os.kill(ranks[0].pid, signal.SIGKILL)
    again = job.up(1, 2)
    assert {one.node for one in again} == seated
    job.finish(again)
    assert [agent.ends() for agent in agents] == [0, 0, 0, 0], job.told()


@pytest.mark.parametrize("rounds", [4, pytest.param(30, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
def test_killed_workers_never_unseat_anybody_and_the_third_is_always_parked(job: Stage, rounds: int) -> None:
    """Issue NVIDIA/nvidia-resiliency-ext#348: there the spare closed the rendezvous, and the job was lost."""
    agents, ranks, spare = three_agents(job, (*TWO, "--max-restarts", str(rounds)))
    chosen, before = random.Random(rounds), places(ranks)
    for number in range(1, rounds + 1):
        os.kill(chosen.choice(ranks).pid, signal.SIGKILL)
        ranks = job.up(number, 2)
        assert places(ranks) == before, job.told()
        spare.says(f"round {number} runs: .*this node is a spare")
    job.finish(ranks)
    assert [agent.ends() for agent in agents.values()] == [0, 0, 0], job.told()
    assert not any(agent.said("to blame") for agent in agents.values()), "killed by somebody else"


def test_a_spare_takes_the_ranks_of_a_dead_node_which_waits_when_it_comes_back(job: Stage) -> None:
    agents, ranks, spare = three_agents(job, (*TWO, "--spares", "1"))
    before = places(ranks)
    lost, stays = before[0], before[1]
    kill_node(agents[lost])
    again = job.up(1, 2)
    assert places(again) == {0: spare.node, 1: stays}, "who stays keeps its ranks"
    agents[stays].says(rf"next: round 1 without \S+ \(.*; {spare.node} takes its ranks")
    agents[stays].says(r"waiting: for 1 more to wait as spare; there are 0 of --spares 1|takes its ranks")
    returned = job.launch(node=lost, options=(*TWO, "--spares", "1"))
    returned.says("round 1 runs: .*this node is a spare")
    job.finish(again)
    assert [one.ends() for one in (spare, agents[stays], returned)] == [0, 0, 0], job.told()


def test_a_node_to_blame_twice_is_replaced(job: Stage) -> None:
    program = job.ranks("--fail", "segfault", "--fail-rank", "1", "--fail-always")
    options = (*TWO, "--max-restarts", "9", "--startup-grace", "0")
    agents = [job.launch(*program, node=name, options=options) for name in ("n0", "n1", "n2")]
    assert [agent.ends() for agent in agents] == [1, 1, 1], job.told()
    job.hear_now()
    seats = {news.round: news.node for news in job.news if news.rank == 1}
    # The spare may come later than the second failure: there is nobody to take the ranks before.
    replaced = next(number for number in sorted(seats) if seats[number] != seats[0])
    assert replaced >= 2, seats
    first, then = seats[0], seats[replaced]
    told = rf"{first} is to blame for the {replaced}(nd|rd|th) time in 10 rounds: {then} takes its ranks"
    assert all(agent.said(told) for agent in agents), job.told()
    assert job.held()[f"0/excluded/{first}"].value["by"] == "policy"


# Growth -------------------------------------------------------------------------------------------------------


def test_a_job_grows_from_one_node_to_three_and_never_closes(job: Stage) -> None:
    options = (*ELASTIC, "--grow-pause", "0")
    agents = [job.launch(node="n0", options=options)]
    job.up(0, 1)
    for number, name in ((1, "n1"), (2, "n2")):
        agents.append(job.launch(node=name, options=options))
        ranks = job.up(number, number + 1)
        assert [one.rank for one in ranks if one.node == "n0"] == [0]
        assert {one.world_size for one in ranks} == {number + 1}
    agents[0].says(r"round 0 ended: the job grows by n1$")
    assert agents[0].said(r"asked for, not billed"), "although --max-restarts is 0"
    job.finish(ranks)
    assert [agent.ends() for agent in agents] == [0, 0, 0], job.told()


def test_a_job_that_grows_saves_first_where_its_ranks_ask(job: Stage) -> None:
    options = (*ELASTIC, "--grow-pause", "0", "--grow", "when-asked")
    program = script(job, GROWS)
    agents = [job.launch(program, str(job.folder), node="n0", options=options)]
    agents[0].says("a step is made")
    agents.append(job.launch(program, str(job.folder), node="n1", options=options))
    agents[0].says(r"waiting: n1: taken in when a person or a rank asks for it \(--grow when-asked\)")
    (job.folder / "grow").touch()
    agents[0].says("round 1 runs: 2 ranks on 2 nodes")
    assert int((job.folder / "saved").read_text()) > 0
    agents[0].says(r"goes on at step [1-9]\d*")
    (job.folder / "end").touch()
    assert [agent.ends() for agent in agents] == [0, 0], job.told()
    assert "0/interrupt/0" not in job.held(), "all ended by themselves"


GROWS = """
import sys, time
from pathlib import Path
import nvrx_async
folder = Path(sys.argv[1])
saved = folder / "saved"
start = int(saved.read_text()) if saved.exists() else 0
print("goes on at step", start, flush=True)
with nvrx_async.connect() as rank:
    for step in rank.steps(1 << 30, start=start):
        time.sleep(0.01)
        if step == start + 3:
            print("a step is made", flush=True)
        if (folder / "grow").exists() and rank.round == 0:
            rank.allow_grow()
        if rank.should_stop(step):
            saved.write_text(str(step))
            break
        if (folder / "end").exists():
            break
"""


def test_at_fault_a_node_is_taken_in_with_the_next_restart(job: Stage) -> None:
    options = (*ELASTIC, "--grow", "at-fault", "--grow-pause", "0", "--max-restarts", "1")
    first = job.launch(node="n0", options=options)
    (rank,) = job.up(0, 1)
    second = job.launch(node="n1", options=options)
    first.says(r"waiting: n1: taken in when this round ends \(--grow at-fault\)")
    os.kill(rank.pid, signal.SIGKILL)
    ranks = job.up(1, 2)
    job.finish(ranks)
    assert [first.ends(), second.ends()] == [0, 0], job.told()


def test_nodes_that_come_and_go_are_bounded_apart_from_restarts(job: Stage) -> None:
    options = (*ELASTIC, "--grow-pause", "0", "--node-loss-limit", "1", "--max-restarts", "0")
    stays = job.launch(node="n0", options=options)
    job.up(0, 1)
    for number in (1, 3):
        comes = job.launch(node="n1", options=options)
        job.up(number, 2)
        kill_node(comes)
        comes.ends()
        if number == 1:
            job.up(2, 1)
    assert stays.ends() == 75, job.told()
    assert stays.said("more than 1 losses of nodes within 3600 s of training")


# Limits -------------------------------------------------------------------------------------------------------

STANDS_STILL = """
import os, signal
import nvrx_async
with nvrx_async.connect() as rank:
    for step in rank.steps(5):
        pass
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_rounds_that_come_no_further_stop_the_job_with_a_sentence(job: Stage) -> None:
    options = ("--max-restarts", "20", "--no-progress-limit", "2", "--culprit-limit", "0")
    agent = job.launch(script(job, STANDS_STILL), options=options)
    assert agent.ends() == 93, job.told()
    assert agent.said(r"no progress in 2 rounds: none came beyond step 4 \(--no-progress-limit\)")
    assert agent.said(r"round 2 runs")
    assert not agent.said(r"round 3 runs")
    end = job.held()["0/rounds/2/end"].value
    assert (end["level"], "no progress" in end["reason"]) == ("stop", True)


def test_a_file_that_the_script_writes_is_progress(job: Stage) -> None:
    text = "import os, signal, sys, time\n"
    text += "if int(os.environ['NVRX_ROUND']) < 2: open(sys.argv[1], 'w').close()\n"
    text += "os.kill(os.getpid(), signal.SIGKILL)"
    file = str(job.folder / "latest")
    options = ("--max-restarts", "20", "--no-progress-limit", "2", "--progress-file", file)
    agent = job.launch(script(job, text), file, options=options)
    assert agent.ends() == 93, job.told()
    assert agent.said(r"none came beyond the last write of the progress file")
    assert agent.said(r"round 3 runs")
    assert not agent.said(r"round 4 runs")


def test_restarts_are_bounded_within_a_window(job: Stage) -> None:
    program = job.ranks("--fail", "sigkill", "--fail-rank", "0", "--fail-always")
    agent = job.launch(*program, options=("--max-restarts", "50", "--restart-limit", "2"))
    assert agent.ends() == 1, job.told()
    assert agent.said(r"more than 2 restarts within 3600 s of training \(--restart-limit\)")
    assert not agent.said(r"round 3 runs")


RAISES = "import nvrx_async\nraise nvrx_async.NonRetryable('shard 7 is corrupt')"
RAISES_A_SUBCLASS = """
import nvrx_async
class BadShardError(nvrx_async.NonRetryable, OSError):
    def __init__(self, shard, *, path):
        self.shard = shard
    def __str__(self):
        return f"shard {self.shard} is corrupt"
raise BadShardError(7, path="/data")
"""


@pytest.mark.parametrize("text", [RAISES, RAISES_A_SUBCLASS], ids=["itself", "a subclass"])
def test_51_a_script_may_say_that_no_retry_helps(job: Stage, text: str) -> None:
    agent = job.launch(script(job, text), options=("--max-restarts", "20"))
    assert agent.ends() == 93, job.told()
    assert agent.said(r"the script says that no retry helps \(NonRetryable\)")
    assert agent.said("shard 7 is corrupt")
    assert not agent.said(r"round 1 runs")
