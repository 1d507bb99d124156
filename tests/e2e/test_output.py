"""Every line of every rank is shown, whole and with its rank; the report comes last."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from support.stage import Stage

RANKS, LINES = 8, 20_000
RECORDED_AGENT = Path(__file__).parents[2] / "benchmarks" / "_recorded_agent.py"
DEADLINE_S = 4.7
"""Of the ranks, from the last renewal that was sent: the TTL of 6 s less the time to kill."""


@pytest.mark.timeout(120)
def test_nothing_is_lost_of_eight_ranks_that_print_a_lot(job: Stage) -> None:
    """And the agent's deadlines are not late meanwhile: renewals are sent in time. `benchmarks/output.py` has more."""
    program = job.ranks("--lines", str(LINES), "--finish-from", "0")
    renewals = job.folder / "renewals"
    agent = job.start(
        *(sys.executable, str(RECORDED_AGENT), str(renewals), "--rdzv-endpoint", job.endpoint or ""),
        *("--rdzv-id", job.run_id, "--nnodes", "1", "--log-dir", str(job.folder / "logs")),
        *("--nproc-per-node", str(RANKS), "--tee", "3", *program),
    )
    assert agent.ends(bound_s=90) == 0, job.told()

    assert not agent.said("not renewed in time"), "the agent was late"
    shown: dict[int, list[int]] = defaultdict(list)
    for found in re.finditer(r"^\[rank (\d)\] line (\d+) of rank (\d): x{40}$", agent.text, re.MULTILINE):
        assert found[1] == found[3]
        shown[int(found[1])].append(int(found[2]))
    assert dict(shown) == {rank: list(range(LINES)) for rank in range(RANKS)}

    # Where all is written before the first renewal is due there is none to be late.
    sent_s = [float(row.split()[0]) for row in renewals.read_text().splitlines()] if renewals.exists() else []
    assert all(after - before < DEADLINE_S for before, after in pairwise(sent_s)), sent_s

    _, closing, report = agent.text.rpartition(f"job {job.run_id} finished")
    assert closing
    assert "[rank" not in report
    assert re.search(r"^ +logs +\S+", report, re.MULTILINE)
    logs = sorted(job.folder.glob(f"logs/{job.run_id}/attempt_0/round_0/rank_*/stdout.log"))
    assert [log.read_text().count("\n") for log in logs] == [LINES] * RANKS


def test_a_console_that_nobody_reads_changes_no_exit_code(job: Stage) -> None:
    """What it did not take is in the files."""
    program = job.ranks("--lines", "40000", "--finish-from", "0")
    logs = ("--log-dir", str(job.folder / "logs"), "--rdzv-id", job.run_id, "--nproc-per-node", "2")
    with subprocess.Popen(
        [sys.executable, "-m", "nvrx_launcher", *logs, *program],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=job.folder,
        start_new_session=True,
    ) as agent:  # fmt: skip
        assert agent.wait(45) == 0, os.read(agent.stderr.fileno(), 1 << 16) if agent.stderr else ""
        assert agent.stdout is not None
        assert select.select([agent.stdout], [], [], 0)[0], "the pipe was full"
    files = sorted((job.folder / "logs" / job.run_id).glob("attempt_0/round_0/rank_*/stdout.log"))
    assert [file.read_text().count("\n") for file in files] == [40_000] * 2


def test_closed_streams_take_everything(tmp_path: Path) -> None:
    (tmp_path / "ok.py").write_text("print('x')")
    words = f"{sys.executable} -m nvrx_launcher ok.py >&- 2>&-; echo $? >code"
    ran = subprocess.run(["sh", "-c", words], cwd=tmp_path, check=False, timeout=60)
    assert ran.returncode == 0
    assert (tmp_path / "code").read_text() == "0\n"


def test_a_reader_that_does_not_read_keeps_no_verdict_back(tmp_path: Path) -> None:
    (tmp_path / "chat.py").write_text("for _ in range(3000): print('x' * 80)\nraise ValueError('boom')")
    words = [sys.executable, "-m", "nvrx_launcher", "--log-dir", "logs", "chat.py"]
    with (
        (tmp_path / "told").open("wb") as told,
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=told) as agent,
    ):
        assert agent.wait(60) == 1
    assert "ValueError: boom" in (tmp_path / "told").read_text()
    (summary,) = tmp_path.glob("logs/*/summary.txt")
    assert "ValueError: boom" in summary.read_text()
