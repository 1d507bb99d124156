"""Every command in docs/inspect.md is run, in its order, against the job that the page tells of."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.nvrx_cli import environment, nvrx
from support.stage import Stage

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
LINKED = str(ROOT / "tests" / "support" / "linked_program.py")
BLOCK = re.compile(r"^```(?:console|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDLESS = ("-f", "-w", "top")
REFUSED = ("grow",)
"""The job of the page has no node that waits."""


def commands() -> Iterator[list[str]]:
    for block in BLOCK.findall(PAGE):
        for line in block.splitlines():
            if line.startswith("$ nvrx "):
                yield shlex.split(line.removeprefix("$ nvrx "), comments=True)


@pytest.mark.timeout(180)
def test_every_command_of_the_page(job: Stage) -> None:
    folder = job.folder / "steps"
    folder.mkdir()
    agents = [
        job.launch(
            LINKED,
            str(folder),
            "1000000",
            node=f"n{number}",
            run_id="llama",
            options=(
                "--nnodes",
                "1:2",
                "--nproc-per-node",
                "2",
                "--max-restarts",
                "3",
                "--warm-workers",
                "off",
            ),
            environment={"NVRX_FAULTS": "exception rank=1 step=20"},
        )
        for number in range(2)
    ]
    job.until(lambda: (folder / "1.0").exists() and (folder / "1.1").exists(), "round 1 makes steps")
    found = list(commands())
    assert len(found) >= 20
    for arguments in found:
        if any(word in arguments for word in ENDLESS):
            assert nvrx(arguments[0], "--help", etcd=None).code == 0
            continue
        answer = nvrx(*arguments, etcd=job.endpoint, cwd=str(job.folder))
        wanted = 1 if arguments[0] in REFUSED else 0
        assert answer.code == wanted, (arguments, answer)
    assert {agent.ends() for agent in agents} == {143}, job.told()


@pytest.mark.timeout(120)
def test_the_program_of_the_page(job: Stage, tmp_path: Path) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    program = tmp_path / "look.py"
    program.write_text(
        source.replace('"127.0.0.1:2379"', repr(job.endpoint)).replace('"llama"', repr(job.run_id))
    )
    agent = job.launch(*job.ranks("--finish-from", "0"))
    assert agent.ends() == 0
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(None),
    )
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout
