"""Whole jobs that hang: found at the deadline, explained, restarted; and stops that all ranks agree on."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from pathlib import Path

import pytest
from support.hang_runs import repeated
from support.stage import Agent, Stage

PROGRAM = Path(__file__).parents[1] / "support" / "linked_program.py"
OPTIONS = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "2", "--warm-workers", "off")
LIMITS = ("--hang-timeout", "2", "--hang-startup-timeout", "6", "--startup-grace", "3")


def two_agents(
    on: Stage, steps: int, *options: str, environment: dict[str, str] | None = None
) -> list[Agent]:
    folder = on.folder / "steps"
    folder.mkdir()
    return [
        on.launch(
            str(PROGRAM),
            str(folder),
            str(steps),
            node=f"n{number}",
            options=(*OPTIONS, *LIMITS, *options),
            environment=environment,
        )
        for number in range(2)
    ]


def evidence(on: Stage, rank: int) -> dict:
    (path,) = (on.folder / "logs").rglob(f"attempt_0/round_0/rank_{rank}/hang.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"NVRX_FAULTS": "hang rank=1 step=20"}, "is at linked_program.py"),
        ({"NVRX_FAULTS": "sleep rank=1 step=20"}, "is at linked_program.py"),
        ({"NVRX_FAULTS": "gil rank=1 step=20"}, "is at linked_program.py"),
        ({"NVRX_FAULTS": "sigstop rank=1 step=20"}, "is stopped by a signal"),
        ({"HANGS": "save"}, "has been in section save"),
        ({"HANGS": "import"}, "never connected"),
        ({"HANGS": "teardown"}, "training is done and does not end"),
    ],
    ids=["python", "sleep", "gil", "sigstop", "section", "imports", "teardown"],
)
def test_a_hung_rank_is_found_explained_and_restarted(job: Stage, fault: dict[str, str], why: str) -> None:
    agents = two_agents(job, 60, environment=fault)
    assert [agent.ends(bound_s=60) for agent in agents] == [0, 0], job.told()
    end = job.held()["0/rounds/0/end"].value
    assert end["root"]["kind"] == "hang"
    assert "rank 1 on" in end["root"]["sentence"], end
    assert why in end["root"]["sentence"], end
    found = [evidence(job, rank) for rank in range(4) if has_evidence(job, rank)]
    assert any(one["hung"] for one in found)
    assert all(one["late_s"] < 1.0 for one in found)
    if "NVRX_FAULTS" in fault:
        assert job.held()["0/round"].value["limits"]["section:step"] > 0, "what was learned is handed on"
    assert job.left() == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["collective", "init", "save"])
def test_a_hang_in_torch_is_found_and_its_culprit_named(job: Stage, kind: str) -> None:
    """Row 70: who is missing where all others wait. All kinds, and many times: `repeat_hangs.py`."""
    row = repeated(job, kind, times=1, timeout_s=4.0, startup_s=20.0)
    assert not row.wrong, "\n".join(row.wrong)
    assert (row.found, row.named, row.restarted) == (1, 1, 1), job.told()
    sentence = job.held()["0/rounds/0/end"].value["root"]["sentence"]
    assert "3 ranks wait for it" in sentence, sentence
    if kind == "save":
        assert "has been in section save for" in sentence


def has_evidence(on: Stage, rank: int) -> bool:
    return any((on.folder / "logs").rglob(f"attempt_0/round_0/rank_{rank}/hang.json"))


@pytest.mark.parametrize("kill", [False, True], ids=["told", "killed"])
def test_a_plain_script_that_stands_still_is_suspect(job: Stage, *, kill: bool) -> None:
    """V21: nothing of it calls us; it is killed where that was asked for, else told with evidence."""
    action = ("--hang-action", "kill-suspects") if kill else ()
    agent = job.launch("sh", "-c", "sleep 1000", options=("--no-python", "--hang-timeout", "1", *action))
    if kill:
        assert agent.ends() == 1, job.told()
        assert job.held()["0/rounds/0/end"].value["root"]["kind"] == "hang"
    else:
        agent.says(r"rank 0 may hang: it stands still: .*not killed, what it does is in .*hang.json")
        assert evidence(job, 0)["threads"]
        agent.signal(signal.SIGTERM)
        assert agent.ends() == 143, job.told()


def test_a_stopped_plain_script_is_hung(job: Stage) -> None:
    """V2."""
    agent = job.launch("sh", "-c", "kill -STOP $$", options=("--no-python", "--hang-timeout", "2"))
    assert agent.ends() == 1, job.told()
    assert "is stopped by a signal" in job.held()["0/rounds/0/end"].value["root"]["sentence"]


def test_an_agent_that_was_frozen_for_a_while_raises_no_alarm(job: Stage) -> None:
    """V27: a sick monitor costs a healthy job a restart elsewhere."""
    agents = two_agents(job, 2000, "--lease-ttl", "12")
    folder = job.folder / "steps"
    job.until(lambda: all((folder / f"0.{rank}").exists() for rank in range(4)), "steps are made")
    agents[0].freeze()
    job.for_a_while(3.0)
    agents[0].signal(signal.SIGCONT)
    assert [agent.ends(bound_s=60) for agent in agents] == [0, 0], job.told()
    assert not any(agent.said(r"\b(hang|hung)\b") for agent in agents)
    assert job.held()["0/round"].value["number"] == 0


@pytest.mark.parametrize("turns", [3, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_sigterms_at_random_moments(job: Stage, turns: int) -> None:
    """Every one of them ends with the same step saved by all ranks."""
    drawn = random.Random(20)
    for turn in range(turns):
        run_id, folder = f"{job.run_id}-{turn}", job.folder / f"steps-{turn}"
        folder.mkdir()
        agents = [
            job.launch(
                str(PROGRAM),
                str(folder),
                "1000000",
                node=f"n{number}",
                options=(*OPTIONS, *LIMITS),
                run_id=run_id,
            )
            for number in range(2)
        ]
        job.until(lambda folder=folder: all((folder / f"0.{rank}").exists() for rank in range(4)), "steps")
        job.for_a_while(drawn.uniform(0.0, 0.5))
        told_s = time.monotonic()
        for agent in drawn.choice([agents, agents[:1], agents[1:]]):
            agent.signal(signal.SIGTERM)
        job.until(
            lambda folder=folder: all((folder / f"saved.{rank}").exists() for rank in range(4)), "saved"
        )
        saved = {(folder / f"saved.{rank}").read_text() for rank in range(4)}
        print(f"turn {turn}: step {saved}, {time.monotonic() - told_s:.2f} s after SIGTERM")
        assert len(saved) == 1
        for agent in agents:
            if agent.process.alive:
                agent.signal(signal.SIGTERM)
        for agent in agents:
            assert agent.ends() in (143, 0), job.told()


def test_the_options_contradict_each_other(alone: Stage) -> None:
    agent = alone.run("--standalone", "--hang-timeout", "60", "--hang-startup-timeout", "10", "train.py")
    assert agent.ends() == 2
    assert agent.said("hang-timeout <= hang-startup-timeout")


@pytest.mark.parametrize("all_of_them", [True, False], ids=["all", "one"])
def test_ranks_of_all_nodes_save_the_same_step(job: Stage, *, all_of_them: bool) -> None:
    """Lightning's dead-lock: each rank handled SIGTERM when it came, and they saved different steps."""
    agents = two_agents(job, 1_000_000)
    folder = job.folder / "steps"
    job.until(lambda: all((folder / f"0.{rank}").exists() for rank in range(4)), "steps are made")
    job.for_a_while(0.3)
    for agent in agents if all_of_them else agents[:1]:
        agent.signal(signal.SIGTERM)
    assert agents[0].ends() == 143, job.told()
    saved = {(folder / f"saved.{rank}").read_text() for rank in range(4)}
    assert len(saved) == 1, saved
    agreed = re.search(r"all ranks of the job stop at step (\d+)", agents[0].text)
    assert agreed is not None, job.told()
    assert saved == {agreed[1]}
    if not all_of_them:
        agents[1].says(r"waiting: round 1: 1 of 2 nodes joined")
        agents[1].signal(signal.SIGTERM)
    assert agents[1].ends() == 143, job.told()
    assert job.left() == []


def test_the_job_stops_by_itself_before_the_time_limit(job: Stage) -> None:
    """Slurm's: all save the same step, nobody sends a signal, and every agent says that the job can be requeued."""
    limit = {"SLURM_JOB_END_TIME": str(round(time.time() + 30))}
    options = ("--time-limit-margin", "15", "--workers-stop-timeout", "5")
    agents = two_agents(job, 1_000_000, *options, environment=limit)
    assert [agent.ends(bound_s=60) for agent in agents] == [75, 75], job.told()
    saved = {(job.folder / "steps" / f"saved.{rank}").read_text() for rank in range(4)}
    assert len(saved) == 1, saved
    outcome = job.held()["0/outcome"].value
    assert (outcome["exit_code"], outcome["success"]) == (75, False)
    assert re.fullmatch(r"the scheduler's time limit is in \d+ s", outcome["reason"]), outcome
    assert all(agent.said(rf"all ranks of the job stop at step {saved.copy().pop()};") for agent in agents)
    assert job.left() == []


def test_a_job_that_asks_for_no_stop_trains_on_to_its_limit(job: Stage) -> None:
    limit = {"SLURM_JOB_END_TIME": str(round(time.time() + 8))}
    agent = job.launch(options=("--time-limit-margin", "6"), environment=limit)
    ranks = job.up(0, 1)
    job.for_a_while(6.0)
    job.finish(ranks)
    assert agent.ends() == 0, job.told()


def test_the_folder_of_a_killed_agent_is_removed_by_the_next(job: Stage, tmp_path: Path) -> None:
    environment = {"TMPDIR": str(job.folder)} if len(str(job.folder)) <= 40 else {}
    agent = job.launch(environment=environment)
    job.up(0, 1)
    folder = Path(environment.get("TMPDIR", "/tmp"))
    (made,) = folder.glob(f"nvrx-*-{agent.pid}-*")
    assert made.stat().st_mode & 0o777 == 0o700
    agent.signal(signal.SIGKILL)
    agent.ends()
    again = job.launch(environment=environment)
    job.finish(job.up(0, 1, bound_s=60) if False else job.up(1, 1, bound_s=60))
    assert again.ends() == 0, job.told()
    assert not made.exists()
