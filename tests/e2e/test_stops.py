"""Somebody stops the job, or it stops itself: what ranks get, what is said, and the exit code."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from support.stage import Agent, Stage

TWO = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3")
FAILING = ("--nproc-per-node", "2")


def two_agents(on: Stage, options: tuple[str, ...]) -> list[Agent]:
    agents = [on.launch(*on.ranks("--saves"), node=f"n{number}", options=options) for number in range(2)]
    on.up(0, 4)
    return agents


@pytest.mark.parametrize(
    ("number", "code", "ending"), [(signal.SIGINT, 130, "cancelled"), (signal.SIGTERM, 143, "preempted")]
)
def test_one_signal_lets_ranks_save_and_leaves_cleanly(
    job: Stage, number: signal.Signals, code: int, ending: str
) -> None:
    agent = job.launch(*job.ranks("--saves"), options=("--nproc-per-node", "2"))
    job.up(0, 2)
    agent.signal(number)
    assert agent.ends() == code, job.told()
    assert len(job.tell("saved", 0, 2)) == 2
    assert agent.said(rf"{number.name}: stopping; ranks have 15 s \(again to kill them now\)$")
    assert agent.said(rf"job {job.run_id} {ending}: .*\(exit code {code}"), job.told()
    held = job.held()
    outcome = held["0/outcome"].value
    assert (outcome["exit_code"], outcome["ending"]) == (code, ending)
    assert not any(item.lease for item in held.values())


def test_a_second_ctrl_c_kills_ranks_that_do_not_stop(job: Stage) -> None:
    deaf = "trap : TERM; echo deaf; while :; do sleep 3600; done"
    agent = job.launch("sh", "-c", deaf, options=("--no-python", "--workers-stop-timeout", "600"))
    agent.says("deaf")
    agent.signal(signal.SIGINT)
    agent.says("SIGINT: stopping; ranks have 600 s")
    agent.signal(signal.SIGINT)
    assert agent.ends() == 130, job.told()
    assert agent.said("SIGINT again: killing the ranks")
    assert not any(item.lease for item in job.held().values())
    assert job.left() == []


def test_an_agent_that_is_ended_by_force_stays_registered_until_its_ranks_are_dead(job: Stage) -> None:
    deaf = "trap : TERM; echo deaf; while :; do sleep 3600; done"
    agent = job.launch("sh", "-c", deaf, options=("--no-python", "--lease-ttl", "3"))
    agent.says("deaf")
    keeper = agent.keeper()
    (rank,) = [job.watch(pid) for pid in agent.processes() if _parent(pid) == keeper]
    agent.signal(signal.SIGINT)
    agent.says("SIGINT: stopping")
    with job.etcd.next_deletion(f"/nvrx/v1/{job.run_id}/0/nodes/") as deletion:
        os.kill(keeper, signal.SIGSTOP)  # it kills nobody; the agent kills it when its deadline has passed
        agent.signal(signal.SIGINT)
        deletion()
    job.hear_now()
    assert not rank.alive, job.told()
    assert agent.ends() == 130, job.told()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_sigterm_to_one_of_two_agents_makes_room_for_a_replacement(job: Stage) -> None:
    stays, leaves = two_agents(job, TWO)
    leaves.signal(signal.SIGTERM)
    assert leaves.ends() == 143, job.told()
    assert {one.node for one in job.tell("saved", 0, 2)} >= {"n1"}
    stays.says(r"round 0 is over: n1 leaves: it was sent SIGTERM")
    stays.says(r"waiting: round 1: 1 of 2 nodes joined")

    comes = job.launch(*job.ranks("--saves"), node="n2", options=TWO)
    job.finish(job.up(1, 4))
    assert [stays.ends(), comes.ends()] == [0, 0], job.told()


def test_sigterm_to_one_of_two_agents_where_one_suffices(job: Stage) -> None:
    stays, leaves = two_agents(job, ("--nnodes", "1:2", *TWO[2:]))
    leaves.signal(signal.SIGTERM)
    assert leaves.ends() == 143, job.told()
    alone = job.up(1, 2)
    assert {(one.node, one.world_size) for one in alone} == {("n0", 2)}
    job.finish(alone)
    assert stays.ends() == 0, job.told()


def test_sigterm_to_both_agents(job: Stage) -> None:
    agents = two_agents(job, TWO)
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.ends() for agent in agents] == [143, 143], job.told()
    held = job.held()
    assert held["0/outcome"].value["exit_code"] == 143
    assert not any(item.lease for item in held.values())


def test_without_restarts_the_summary_names_the_rank_its_exception_and_its_log(job: Stage) -> None:
    agent = job.launch(*job.ranks("--fail", "raise", "--fail-rank", "1"), options=FAILING)
    assert agent.ends() == 1, job.told()
    _, closing, summary = agent.text.rpartition(f"job {job.run_id} failed")
    assert closing
    assert "--max-restarts is 0: nothing is tried again" in summary
    for words in (
        r"rank 1 on \S+ exited with code 1",
        r"AskedToFailError: the shards are all gone",
        r"at \S*/rank_program.py:\d+ in fail",
        rf"log {job.folder}/logs/{job.run_id}/attempt_0/round_0/rank_1",
    ):
        assert re.search(words, summary), f"/{words}/ is not in{summary}"
    assert not any(item.lease for item in job.held().values())


def test_the_same_error_is_tried_twice_and_no_more(job: Stage) -> None:
    program = job.ranks("--fail", "raise", "--fail-rank", "1", "--fail-always")
    agent = job.launch(*program, options=(*FAILING, "--max-restarts", "100"))
    assert agent.ends() == 93, job.told()
    assert agent.said("tried twice: the same error came at the same place in two rounds")
    assert max(news.round for news in job.news) == 1


def test_restarts_end_with_their_budget(job: Stage) -> None:
    """SIGKILL by somebody is never called deterministic; every agent ends with the job's exit code."""
    program = job.ranks("--fail", "sigkill", "--fail-rank", "3", "--fail-always")
    options = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "2")
    agents = [job.launch(*program, node=f"n{number}", options=options) for number in range(2)]
    assert [agent.ends() for agent in agents] == [1, 1], job.told()
    assert all(agent.said("all 2 restarts of --max-restarts are spent") for agent in agents), job.told()
    job.hear_now()
    # Only of the rank that fails it is certain that it was up: it takes the others along while they start.
    assert {news.round for news in job.news if news.rank == 3} == {0, 1, 2}
    assert {news.round for news in job.news} == {0, 1, 2}
