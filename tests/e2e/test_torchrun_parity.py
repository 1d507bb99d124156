"""torchrun is the reference: the same command lines through both, and every difference has its row in the docs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.parity import Line, Result, Theatre
from support.parity_lines import GOOD, LINES, WRONG

from nvrx_launcher.migration_doc import with_table

PAGE = Path(__file__).parents[2] / "docs" / "from-torchrun.md"
BY_NAME = {line.shown: line for line in LINES}
Played = Mapping[Line, tuple[Result, Result]]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """All lines, once: a minute on two busy cores."""
    return Theatre(tmp_path_factory.mktemp("parity"), LINES).play()


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under a heading, without the marks of code."""
    section = PAGE.read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


def test_there_are_enough_lines_and_each_is_named_once() -> None:
    assert len(BY_NAME) == len(LINES) >= 40
    assert GOOD
    assert WRONG


def test_exit_codes(played: Played) -> None:
    found = {
        line.shown: (theirs.codes[0], ours.codes[0])
        for line, (theirs, ours) in played.items()
        if theirs.codes != ours.codes
    }
    listed = {name: (int(theirs), int(ours)) for name, theirs, ours, why in rows("Exit codes") if why}
    assert found == listed


def test_a_job_that_is_stopped(tmp_path: Path) -> None:
    """torchrun's side of it; ours is in test_stops.py."""
    script = tmp_path / "train.py"
    script.write_text("import signal\nprint('up', flush=True)\nsignal.pause()\n")
    with subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", str(script)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as torchrun:  # fmt: skip
        assert torchrun.stdout is not None
        assert torchrun.stdout.readline() == b"up\n"
        torchrun.send_signal(signal.SIGTERM)
        assert torchrun.wait(30) == 1


@pytest.mark.parametrize(("launcher", "read"), [("torch.distributed.run", "typed"), ("nvrx_launcher", "")])
def test_standard_input(tmp_path: Path, launcher: str, read: str) -> None:
    command = [sys.executable, "-m", launcher, "--no-python", "sh", "-c", 'read line; echo "read=$line="']
    done = subprocess.run(
        command, input=b"typed\n", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path, check=True
    )
    assert f"read={read}=" in done.stdout.decode()
    assert "find it empty" in PAGE.read_text()


def test_worlds_of_ranks(played: Played) -> None:
    differing: dict[str, str] = {}
    for line, (theirs, ours) in played.items():
        if theirs.codes != ours.codes:
            continue
        if not any(theirs.codes):
            assert theirs.worlds.keys() == ours.worlds.keys(), line.shown
        for rank, world, mine in _worlds_of_both(theirs, ours):
            same = ("arguments", "cwd", "main")
            assert [mine[name] for name in same] == [world[name] for name in same], f"{line.shown}: {rank}"
            assert mine["unbuffered"], f"{line.shown}: {rank}"
            there, here = world["environment"], mine["environment"]
            names = {name for name in {*there, *here} if there.get(name) != here.get(name)}
            differing |= {re.sub("NVRX_.*", "NVRX_…", name): f"{line.shown}: {rank}" for name in names}
    listed = {name for name, *_, why in rows("Environment of ranks") if why}
    assert differing.keys() == listed, differing


def test_what_was_named_is_the_same(played: Played) -> None:
    """A variable that may differ does not when the command line says what it is."""
    for line, (theirs, ours) in played.items():
        for _, world, mine in _worlds_of_both(theirs, ours):
            there, here = world["environment"], mine["environment"]
            if "--rdzv-id" in line.options:
                assert here["TORCHELASTIC_RUN_ID"] == there["TORCHELASTIC_RUN_ID"]
            assert here["TORCHELASTIC_ERROR_FILE"].endswith("/error.json")
            assert int(here["MASTER_PORT"]) > 0


def _worlds_of_both(theirs: Result, ours: Result) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Ranks that told of their world under both: beside one that fails, another may be stopped before it does."""
    both = [rank for rank in theirs.worlds if rank in ours.worlds]
    return [(rank, theirs.worlds[rank], ours.worlds[rank]) for rank in both]


def test_what_reaches_the_console(played: Played) -> None:
    for line, (theirs, ours) in played.items():
        if theirs.codes == ours.codes == (0,):
            said = _said(theirs.output)
            # torchrun's reader of files may end before a rank's last lines are in them; they stand in the files.
            lost = _said("\n".join(theirs.files.values())) if _TEES.search(line.options) else set()
            assert said <= _said(ours.output) <= said | lost, line.shown


_TEES = re.compile(r"(?:^|\s)(?:-t|--tee)[ =]")


def _said(text: str) -> set[str]:
    return set(re.findall(r"(?:out|err) of \d", text))


def test_files(played: Played) -> None:
    looked_at = 0
    for line, (theirs, ours) in played.items():
        if "{logs}" not in line.options:
            continue
        here = {path.partition("/")[2]: text for path, text in ours.files.items()}
        for path, text in theirs.files.items():
            written = here[path.partition("/")[2]]
            if theirs.codes == (0,):  # else a rank may be stopped before it says anything
                assert _plain(written) == _plain(text), f"{line.shown}: {path}"
            looked_at += 1
    assert looked_at >= 10


def _plain(text: str) -> str:
    """Without the ranks that stand before lines of a filtered file."""
    return re.sub(r"^\[[^\]]+\][: ]", "", text, flags=re.MULTILINE)


def test_the_table_of_options_is_current() -> None:
    text = PAGE.read_text()
    assert with_table(text) == text, "run: python -m nvrx_launcher.migration_doc docs/from-torchrun.md"
