"""Jobs of people who come from ft_launcher: its YAML file, its client's calls, and every command of the page."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stage import Agent, Stage

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-nvrx.md").read_text(encoding="utf-8")
TRAINING = str(Path(__file__).parents[1] / "support" / "nvrx_training.py")

# As such files are: limits of sections and beats, and what only NVIDIA's monitor needs.
FILE = """\
fault_tolerance:
  initial_rank_heartbeat_timeout: {start}
  rank_heartbeat_timeout: {beat}
  rank_section_timeouts: {{setup: 60, step: {step}, checkpointing: null}}
  workload_check_interval: 5.0
  safety_factor: 5.0
  rank_termination_signal: SIGKILL
"""


def launched(on: Stage, case: str, *, beat: float, step: float, start: float = 60) -> Agent:
    (on.folder / "ft.yaml").write_text(FILE.format(beat=beat, step=step, start=start))
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


def test_a_section_may_take_as_long_as_the_file_says(job: Stage) -> None:
    """Longer than all else may: no wrong kill."""
    agent = launched(job, "setup", beat=3, step=3)
    assert agent.ends(bound_s=60) == 0, job.told()
    assert job.held()["0/round"].value["number"] == 0, job.told()


@pytest.mark.parametrize("case", ["saves", "late", "ends"])
def test_what_has_no_limit_there_ends_nobody_here(job: Stage, case: str) -> None:
    """A section whose limit is null, what comes before the client connects, and what comes after it."""
    agent = launched(job, case, beat=1, step=1, start=1)
    assert agent.ends(bound_s=60) == 0, job.told()
    assert job.held()["0/round"].value["number"] == 0, job.told()


def test_who_never_reports_is_not_killed_for_it(job: Stage) -> None:
    """ft_launcher's limit of the first heartbeat is for ranks that have created its client."""
    agent = launched(job, "never", beat=2, step=2, start=2)
    assert agent.ends(bound_s=60) == 0, job.told()
    assert job.held()["0/round"].value["number"] == 0, job.told()


# The page.

WORK = """
import time
def build(): time.sleep(0.1)
def train(step): time.sleep(0.01)
def save(step): time.sleep(0.02)
"""
SCRIPTS = {
    "work.py": WORK,
    "ok.py": "print('ok')",
    "killed.py": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "raises.py": "raise RuntimeError('boom')",
    "iteration": "7",
}
_OURS = ("NVRX_", "PET_", "SLURM_", "TORCH", "OMP_")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> Iterator[str]:
    for block in blocks("console"):
        yield from (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the page's commands find: its files, and the work that its script does."""
    (tmp_path / "ft.yaml").write_text(blocks("yaml")[0])
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def started(folder: Path, command: str) -> subprocess.Popen[str]:
    """A command of the page; ft_launcher's is given to nvrx-launch as it is."""
    launch = f"{shlex.quote(sys.executable)} -m nvrx_launcher"
    line = re.sub(r"\b(ft_launcher|nvrx-launch) ", f"{launch} ", command, count=1)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return subprocess.Popen(
        ["sh", "-c", line], cwd=folder, env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def said(process: subprocess.Popen[str]) -> str:
    """What it said, having ended well."""
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    return output


@pytest.mark.timeout(240)
def test_every_command_of_the_page(folder: Path) -> None:
    """In two folders at once: with the script before the change, and after it."""
    before, after = blocks("python")
    changed = Path(shutil.copytree(folder, folder / "changed"))
    (folder / "train.py").write_text(before)
    (changed / "train.py").write_text(after)
    theirs, ours, shown, as_file, faulty = commands()
    note, as_yaml, hung = blocks("text")
    trainings = [started(folder, theirs), started(changed, ours)]
    table, file, hangs = started(folder, shown), started(folder, as_file), started(changed, faulty)
    for training in trainings:
        assert note.strip() in said(training).splitlines()
    assert re.search(r"^hang_startup_timeout +1800 +file: ft.yaml:3", said(table), re.MULTILINE)
    said(file)
    given = [line for line in (folder / "job.yaml").read_text().splitlines() if not line.startswith("#")]
    assert given == as_yaml.splitlines()
    pattern = re.escape(hung.strip().split(" ", 2)[2]).replace("vm", r"\S+").replace(r"3\.0", r"\d\.\d")
    assert re.search(pattern, said(hangs)), pattern


def exit_codes() -> list[tuple[str, int]]:
    section = PAGE.split("### Exit codes\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line
    ]
    return [(command, int(code)) for command, _, code in rows[2:]]


@pytest.mark.timeout(120)
def test_exit_codes_of_the_page(folder: Path) -> None:
    rows = [(line.strip("`"), code) for line, code in exit_codes() if line.startswith("`")]
    assert len(rows) == 5
    running = [(started(folder, f"nvrx-launch --standalone {line}"), line, code) for line, code in rows]
    for process, line, code in running:
        output, _ = process.communicate(timeout=90)
        assert process.returncode == code, f"{line}\n{output}"


@pytest.mark.parametrize("handles", [False, True])
def test_exit_code_of_a_job_that_is_stopped(folder: Path, *, handles: bool) -> None:
    """The page's last two rows."""
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))" if handles else ""
    (folder / "waits.py").write_text(
        f"import signal, sys\n{handler}\nprint('up', flush=True)\nsignal.pause()\n"
    )
    process = started(folder, "exec nvrx-launch --standalone waits.py")
    assert process.stdout is not None
    while "up" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    wanted = dict(exit_codes())
    assert process.returncode == wanted[f"SIGTERM, ranks {'exit with 0' if handles else 'die of it'}"]
