"""The same command lines through torchrun and nvrx-launch: exit codes, the ranks' worlds, and files, side by side."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPORT, BATCH = HERE / "world_report.py", HERE / "torchrun_batch.py"
TORCHRUN, OURS = "torchrun", "nvrx-launch"
LIMIT_S = 100
_KEPT = ("PATH", "HOME", "LANG", "NVRX_TEST_SESSION", "PYTHONPATH")


@dataclass(frozen=True)
class Line:
    """One command line as a person types it: `program` follows the options, `second` is another node's line.

    `environment` holds variables as a shell takes them.

    `{report}`, `{out}`, `{logs}`, `{port}` and `{python}` stand for what differs from run to run.
    """

    options: str
    program: str = "{report} {out}"
    environment: str = ""
    second: str | None = None

    @property
    def shown(self) -> str:
        """How the docs name it."""
        program = {"{report} {out}": "train.py"}.get(self.program, self.program)
        words = program.replace("{report} {out}", "train.py").replace("{out} ", "").replace("{out}", "")
        line = f"{self.environment} {self.options} {words}".replace("{port}", "29500").replace(
            "{logs}", "logs"
        )
        return " ".join(line.split())


@dataclass(frozen=True)
class Result:
    """What came of a line: exit codes, what each rank reported (by name), files below the log folder."""

    codes: tuple[int, ...]
    worlds: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, str]
    output: str


class Theatre:
    """Plays lines, each in a folder of its own."""

    def __init__(self, folder: Path, lines: Sequence[Line]) -> None:
        self._folder = folder
        self._lines = lines
        # Where all are started: with a package that can be run as a module.
        self._work = folder / "work"
        (self._work / "package").mkdir(parents=True)
        (self._work / "package" / "__init__.py").touch()
        (self._work / "package" / "train.py").write_text(REPORT.read_text())

    def play(self) -> dict[Line, tuple[Result, Result]]:
        """The results of every line: torchrun's and ours. Both run at the same time."""
        with ThreadPoolExecutor(3) as pool:
            theirs = pool.submit(self._torchrun)
            ours = list(pool.map(self._ours, range(len(self._lines))))
            codes = theirs.result()
        return {
            line: (self._result(TORCHRUN, index, codes[index]), self._result(OURS, index, ours[index]))
            for index, line in enumerate(self._lines)
        }

    def _torchrun(self) -> list[tuple[int, ...]]:
        groups = [
            [
                {"arguments": arguments, "environment": self._environment(line), "output": str(output)}
                for arguments, output in self._nodes(TORCHRUN, index)
            ]
            for index, line in enumerate(self._lines)
        ]
        done = subprocess.run(
            [sys.executable, str(BATCH)], input=json.dumps(groups), capture_output=True, text=True,
            timeout=LIMIT_S, check=False, cwd=self._work,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [tuple(codes) for codes in json.loads(done.stdout.splitlines()[-1])]

    def _ours(self, index: int) -> tuple[int, ...]:
        started = []
        for arguments, output in self._nodes(OURS, index):
            with output.open("wb") as file:
                command = [sys.executable, "-m", "nvrx_launcher", *arguments]
                environment = self._environment(self._lines[index])
                started.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                        env=environment, cwd=self._work, start_new_session=True,
                    )
                )  # fmt: skip
        return tuple(process.wait(LIMIT_S) for process in started)

    def _nodes(self, tool: str, index: int) -> list[tuple[list[str], Path]]:
        """Arguments of each node's launcher, and where its output goes."""
        line, place = self._lines[index], self._place(tool, index)
        (place / "out").mkdir(parents=True, exist_ok=True)
        words = {
            "report": REPORT,
            "python": sys.executable,
            "out": place / "out",
            "logs": place / "logs",
            "port": _free_port(),
        }
        both = [line.options] + ([line.second] if line.second is not None else [])
        return [
            (
                [word.format(**words) for word in shlex.split(f"{options} {line.program}")],
                place / f"{node}.txt",
            )
            for node, options in enumerate(both)
        ]

    def _environment(self, line: Line) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        added = dict(pair.split("=") for pair in line.environment.split())
        return {**kept, "TMPDIR": str(self._work), **added}

    def _place(self, tool: str, index: int) -> Path:
        return self._folder / tool / str(index)

    def _result(self, tool: str, index: int, codes: tuple[int, ...]) -> Result:
        place = self._place(tool, index)
        worlds = {path.stem: json.loads(path.read_text()) for path in sorted((place / "out").glob("*.json"))}
        logs = place / "logs"
        found = _files(logs)
        files = {str(path.relative_to(logs)): path.read_text(errors="replace") for path in found}
        return Result(codes, worlds, files, "".join(path.read_text() for path in sorted(place.glob("*.txt"))))


def _files(folder: Path) -> list[Path]:
    """All files below, links to folders followed."""
    return [Path(at) / name for at, _, names in os.walk(folder, followlinks=True) for name in sorted(names)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
