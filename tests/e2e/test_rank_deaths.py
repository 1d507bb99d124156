"""A rank dies, of whatever: all ranks run again in the next round, and the training ends as if nothing had been."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import pytest
from support.stage import TRAINING, Stage, stage
from support.etcd_server import EtcdProcess

KINDS = ("exit", "raise", "sigkill", "segfault")
Kind = Literal["exit", "raise", "sigkill", "segfault"]
STEPS = ("--steps", "60", "--save-every", "20", "--crash-step", "50")
TRAINS_S = 90.0


def train(on: Stage, agents: int, *crash: str) -> str:
    """Train on so many agents of two ranks; the line with the result, which exactly one agent printed."""
    options = ("--nnodes", str(agents), "--nproc-per-node", "2", "--max-restarts", "2")
    started = [
        on.launch(
            str(TRAINING), "--out", str(on.folder / "out"), *STEPS, *crash,
            node=f"n{number}", options=options, environment={"OMP_NUM_THREADS": "1"},
        )
        for number in range(agents)
    ]
    assert [agent.ends(bound_s=TRAINS_S) for agent in started] == [0] * agents, on.told()
    (result,) = [found for agent in started for found in re.findall(r"result: .*", agent.text)]
    return result


@pytest.fixture(scope="session")
def undisturbed(etcd: EtcdProcess) -> Callable[[int], str]:
    """The result of a training that nobody disturbed, by the number of agents."""
    results: dict[int, str] = {}

    def result(agents: int) -> str:
        if agents not in results:
            with stage(etcd.endpoint) as made:
                results[agents] = train(made, agents)
        return results[agents]

    return result


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("agents", [1, 2])
def test_training_ends_with_the_result_of_an_undisturbed_one(
    job: Stage, undisturbed: Callable[[int], str], agents: int, kind: Kind
) -> None:
    victim = 2 * agents - 1
    result = train(job, agents, "--crash-rank", str(victim), "--crash-kind", kind)

    assert result == undisturbed(agents)
    assert (job.folder / "out" / "crashed").exists()
    for agent in job.agents:
        assert agent.said(r"round 1 runs: "), agent.text
        assert not agent.said(r"round 2 runs: "), agent.text
        assert agent.said(rf"^nvrx \S+ job {job.run_id} finished after 1 restart$"), agent.text
    named = {
        "exit": "exited with code 1",
        "raise": r"raised CrashOnRequestError: rank \d was asked to fail at step 50 \(train_ddp.py:\d+\)",
        "sigkill": "was killed by SIGKILL",
        "segfault": "was killed by SIGSEGV",
    }[kind]
    held = job.held()
    assert re.search(named, held["0/rounds/0/end"].value["root"]["sentence"])
    assert held["0/rounds/0/end"].value["root"]["rank"] == victim
    assert held["0/outcome"].value["success"] is True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("agents", [1, 2])
def test_all_ranks_run_again(job: Stage, agents: int, kind: Kind) -> None:
    play(job, agents, kind)


def play(on: Stage, agents: int, kind: str) -> None:
    """A job of ranks without torch in which the last rank fails once."""
    count = 2 * agents
    program = on.ranks("--fail", kind, "--fail-rank", str(count - 1), "--finish-from", "1")
    options = ("--nnodes", str(agents), "--nproc-per-node", "2", "--max-restarts", "2")
    started = [on.launch(*program, node=f"n{number}", options=options) for number in range(agents)]
    codes = [agent.ends() for agent in started]
    assert codes == [0] * agents, on.told()
    again = on.tell("up", 1, count)
    assert [one.rank for one in again] == list(range(count))
    assert {one.world_size for one in again} == {count}
    assert not any(one.round > 1 for one in on.news), on.told()
