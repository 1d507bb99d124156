"""Jobs of people who come from ft_launcher: its YAML file, its client's calls, and every command of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.stage import Agent, Stage

TRAINING = str(Path(__file__).parents[1] / "support" / "nvrx_training.py")

# As such files are: limits of sections and beats, and what only NVIDIA's monitor needs.
FILE = """\
fault_tolerance:
  initial_rank_heartbeat_timeout: 3
  rank_heartbeat_timeout: {beat}
  rank_section_timeouts: {{setup: 60, step: {step}, checkpointing: null}}
  workload_check_interval: 5.0
  safety_factor: 5.0
  rank_termination_signal: SIGKILL
"""


def launched(on: Stage, case: str, *, beat: float, step: float) -> Agent:
    (on.folder / "ft.yaml").write_text(FILE.format(beat=beat, step=step))
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--ft-cfg-path", str(on.folder / "ft.yaml"))
    return on.launch(TRAINING, case, options=(*options, "--warm-workers", "off"))


@pytest.mark.parametrize(
    ("case", "limits"), [("section", {"beat": 30, "step": 2}), ("heartbeat", {"beat": 2, "step": 30})]
)
def test_a_hang_is_found_at_the_time_out_of_the_file(job: Stage, case: str, limits: dict) -> None:
    """Of 30 and 2 s the one that is meant for the case; NVIDIA's monitor looks every 5 s, ours when it is due."""
    agent = launched(job, case, **limits)
    assert agent.ends(bound_s=60) == 0, job.told()
    root = job.held()["0/rounds/0/end"].value["root"]
    assert root["kind"] == "hang", root
    assert root["end"]["rank"] == 1, root
    (path,) = (job.folder / "logs").rglob("round_0/rank_1/hang.json")
    told = json.loads(path.read_text())
    assert told["hung"]
    assert 2 <= told["silent_s"] < 2 + 15, told
    assert re.search(r"rank 1 on \S+ has reported nothing for \d+\.\d s", root["sentence"]), root
    assert job.held()["0/round"].value["number"] == 1
    assert agent.said(r"these change nothing: workload_check_interval \(nothing is polled")
    assert agent.said(r"these ask for what happens anyway: rank_termination_signal")
    assert agent.said(r"rank_section_timeouts: checkpointing without a limit: --hang-timeout holds")


def test_a_section_may_take_as_long_as_the_file_says(job: Stage) -> None:
    """Longer than all else may: no wrong kill."""
    agent = launched(job, "setup", beat=2, step=2)
    assert agent.ends(bound_s=60) == 0, job.told()
    assert job.held()["0/round"].value["number"] == 0, job.told()


def test_who_never_reports_is_not_killed_for_it(job: Stage) -> None:
    """ft_launcher's limit of the first heartbeat is for ranks that have created its client."""
    agent = launched(job, "never", beat=2, step=2)
    assert agent.ends(bound_s=60) == 0, job.told()
    assert job.held()["0/round"].value["number"] == 0, job.told()
