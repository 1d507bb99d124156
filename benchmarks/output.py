"""Ranks write as fast as they can: is every line shown once and whole, and is the agent's lease renewed in time?

    python benchmarks/output.py --ranks 8 --lines 200000

Every line is numbered. The console is read through a pipe as it comes and checked line by line, then the files of the
ranks. The lease lasts 6 s and is renewed every 2 s; ranks would be killed 4.7 s after the last renewal that was sent.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _table import machine, table

AGENT = Path(__file__).with_name("_recorded_agent.py")
HEAD = (
    "ranks",
    "lines",
    "MB",
    "s",
    "lines/s",
    "lost or out of order",
    "glued or torn",
    "files whole",
    "renewals",
    "between two, s",
    "longest, s",
    "answer told after at most, ms",
)
RANK = """
import os, sys
lines, rank = int(sys.argv[1]), os.environ["RANK"]
for n in range(lines):
    sys.stdout.write(f"line {n} of rank {rank}: {'x' * 40}\\n")
"""
LINE = re.compile(rb"\[rank (\d+)\] line (\d+) of rank (\d+): x{40}\n")
SHORT = re.compile(rb"\[rank \d+\]|x{10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(f"# Output: {machine()}\n")
    print(table(HEAD, [measure(arguments.ranks, arguments.lines) for _ in range(arguments.runs)]))


def measure(ranks: int, lines: int) -> Sequence[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rank.py").write_text(RANK)
        options = [
            "--nproc-per-node",
            str(ranks),
            "--tee",
            "3",
            "--log-dir",
            str(folder / "logs"),
            "--rdzv-id",
            "o",
        ]
        # Buffered, as fast as Python can: else each rank waits for one system call a line.
        program = ["--no-python", sys.executable, str(folder / "rank.py"), str(lines)]
        begun_s = time.monotonic()
        with subprocess.Popen(
            [sys.executable, str(AGENT), str(folder / "renewals"), *options, *program],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        ) as agent:
            assert agent.stdout is not None
            following, wrong, broken = [0] * ranks, 0, 0
            for line in agent.stdout:
                found = LINE.fullmatch(line)
                if found is None:
                    broken += SHORT.search(line) is not None
                    continue
                rank, number = int(found[1]), int(found[2])
                wrong += number != following[rank] or found[3] != found[1]
                following[rank] = number + 1
            code = agent.wait()
        took_s = time.monotonic() - begun_s
        wrong += sum(lines - last for last in following)
        logs = sorted((folder / "logs" / "o").glob("attempt_0/round_0/rank_*/stdout.log"))
        whole = sum(_is_whole(log, lines) for log in logs)
        size_mb = sum(log.stat().st_size for log in logs) / 1e6
        stamps = [tuple(map(float, row.split())) for row in (folder / "renewals").read_text().splitlines()]
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(stamps)] or [0.0]
    assert code == 0, f"nvrx-launch exited with {code}"
    return (
        f"{ranks}",
        f"{ranks * lines:,}",
        f"{size_mb:.0f}",
        f"{took_s:.1f}",
        f"{ranks * lines / took_s:,.0f}",
        f"{wrong}",
        f"{broken}",
        f"{whole} of {ranks}",
        f"{len(stamps)}",
        f"{statistics.median(gaps):.2f}",
        f"{max(gaps):.2f}",
        f"{max(told - sent for sent, told in stamps) * 1e3:.0f}",
    )


def _is_whole(log: Path, lines: int) -> bool:
    rank = log.parent.name.removeprefix("rank_")
    with log.open() as file:
        return (
            sum(line == f"line {n} of rank {rank}: {'x' * 40}\n" for n, line in enumerate(file))
            == lines
            == sum(1 for _ in log.open())
        )


if __name__ == "__main__":
    main()
