"""A rank dies, of whatever: all ranks run again in the next round, and the training ends as if nothing had been."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support.etcd_server import EtcdProcess
from support.rank_deaths import ABORTED, KINDS, RANKS_PER_AGENT, play, train
from support.stage import Stage, stage

SENTENCES = {
    "exit": r"exited with code 1",
    "raise": r"raised CrashOnRequestError: rank \d was asked to fail at step 50 \(train_ddp.py:\d+\)",
    "sigkill": r"was killed by SIGKILL",
    "segfault": r"was killed by SIGSEGV",
}


@pytest.fixture(scope="session")
def undisturbed(etcd: EtcdProcess) -> Callable[[int], str]:
    """The result of a training that nobody disturbed, by the number of agents."""
    results: dict[int, str] = {}

    def result(agents: int) -> str:
        if agents not in results:
            with stage(etcd.endpoint) as made:
                results[agents] = train(made, agents, None)
        return results[agents]

    return result


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("agents", [1, 2])
def test_training_ends_with_the_result_of_an_undisturbed_one(
    job: Stage, undisturbed: Callable[[int], str], agents: int, kind: str
) -> None:
    result = train(job, agents, kind)

    assert result == undisturbed(agents)
    for agent in job.agents:
        assert agent.said(r"round 1 runs: "), agent.text
        assert agent.said(rf"^nvrx \S+ job {job.run_id} finished after \d restart"), agent.text
        assert not agent.said(r"round 2 runs: ") or any(ABORTED in one.text for one in job.agents), job.told()
    held = job.held()
    root = held["0/rounds/0/end"].value["root"]
    assert re.search(SENTENCES[kind], root["sentence"]), root
    assert root["end"]["rank"] == RANKS_PER_AGENT * agents - 1
    assert held["0/outcome"].value["success"] is True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("agents", [1, 2])
def test_all_ranks_run_again(job: Stage, agents: int, kind: str) -> None:
    play(job, agents, kind)
