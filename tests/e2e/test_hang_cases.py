"""Hangs as users reported them: rows of A4, and what the incumbent misses (V20), each as a whole job."""

from __future__ import annotations

from pathlib import Path

from support.stage import Agent, Stage

PROGRAM = Path(__file__).parents[1] / "support" / "hang_cases.py"
LIMITS = ("--hang-timeout", "3", "--hang-startup-timeout", "20")


def launched(on: Stage, case: str, *limits: str, ranks: int = 1) -> Agent:
    common = ("--nproc-per-node", str(ranks), "--max-restarts", "1", "--warm-workers", "off")
    options = (*common, *(limits or LIMITS))
    return on.launch(str(PROGRAM), case, options=options)


def ended(on: Stage) -> dict:
    return on.held()["0/rounds/0/end"].value["root"]


def stacks(on: Stage, rank: int) -> str:
    (path,) = (on.folder / "logs").rglob(f"round_0/rank_{rank}/stacks.txt")
    return path.read_text()


def test_63_v20_beats_of_a_side_thread_do_not_hide_a_stuck_main_thread(job: Stage) -> None:
    agent = launched(job, "beats")
    assert agent.ends(bound_s=60) == 0, job.told()
    root = ended(job)
    assert root["kind"] == "hang", root
    assert "hang_cases.py" in root["sentence"], "the main thread's place is told"
    assert "in beats" in root["sentence"], root


def test_v20_beats_of_a_side_thread_alone_do_not_hide_a_stuck_process(job: Stage) -> None:
    """No step, no section: nothing says that the main thread trains, so it is watched from outside."""
    agent = launched(job, "beats_alone", "--hang-timeout", "2", "--hang-action", "kill-suspects")
    assert agent.ends(bound_s=60) == 0, job.told()
    root = ended(job)
    assert root["kind"] == "hang", root
    assert "in beats" in root["sentence"], root


def test_work_after_the_last_report_is_no_hang(job: Stage) -> None:
    """An evaluation after the block, longer than the limit of the end: told, and left alone."""
    agent = launched(job, "works_on", "--hang-timeout", "1", "--hang-startup-timeout", "2")
    assert agent.ends(bound_s=60) == 0, job.told()
    assert job.held()["0/round"].value["number"] == 0
    assert agent.said(
        r"rank 0 may hang: it said that training is done and does not end but works on, for more than 2"
    )


def test_65_a_section_that_a_killed_process_left_open_judges_nobody(job: Stage) -> None:
    agent = launched(job, "mid_save")
    assert agent.ends(bound_s=60) == 0, job.told()
    assert ended(job)["kind"] == "signal"
    assert job.held()["0/round"].value["number"] == 1, "it trained for three limits of that section"
    assert not agent.said(r"\b(hang|hangs|hung)\b"), job.told()


def test_71_who_waits_for_a_rank_that_is_gone_need_not_wait_for_a_time_out(job: Stage) -> None:
    options = ("--nnodes", "2", "--max-restarts", "1", "--warm-workers", "off", "--hang-timeout", "600")
    agents = [job.launch(str(PROGRAM), "dies", node=f"n{number}", options=options) for number in range(2)]
    assert [agent.ends(bound_s=60) for agent in agents] == [0, 0], job.told()
    root = ended(job)
    assert (root["kind"], root["end"]["rank"]) == ("signal", 0), root
    assert job.held()["0/round"].value["number"] == 1


def test_72_stacks_of_native_code_with_the_gil_and_of_a_sleep_are_kept(job: Stage) -> None:
    agent = launched(job, "both", ranks=2)
    assert agent.ends(bound_s=60) == 0, job.told()
    assert ended(job)["kind"] == "hang"
    assert "in backtracks" in stacks(job, 0)
    assert "in sleeps" in stacks(job, 1)
