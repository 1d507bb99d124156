"""Every view of `nvrx` ends where the screen does, however narrow that is and however long names are."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nvrx_async.job.job_events import EventKind, JobEvent
from nvrx_async.job.why import Stack, Why
from nvrx_launcher.ctl import text_rounds
from nvrx_launcher.ctl.checks.finding import Finding, Grade
from nvrx_launcher.ctl.doctor import report
from nvrx_launcher.ctl.lines import hanging, packed
from nvrx_launcher.ctl.screen import screen_for
from nvrx_launcher.ctl.table import Cell, Column, signs, table

WIDTHS = (40, 60, 80, 120, 200)
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def red(text: str) -> str:
    return f"\x1b[31m{text}\x1b[0m"


def test_nothing_is_no_line() -> None:
    assert packed([], 20) == [] == packed([], None)
    assert packed([""], 20) == [""], "an empty text is an empty line"


def test_words_stay_whole_and_later_lines_are_indented() -> None:
    text = ["job", Cell("  running", red), " for a minute, round-trip 7"]
    assert packed(text, 20, "  ") == [
        "job  \x1b[31mrunning\x1b[0m for a".replace("  \x1b[31m", "\x1b[31m  "),
        "  minute, round-trip",
        "  7",
    ]
    assert packed(text, None) == ["job\x1b[31m  running\x1b[0m for a minute, round-trip 7"]
    assert packed([""], 20) == [""]


@pytest.mark.parametrize("width", [1, 5, 12, 30])
@pytest.mark.parametrize("text", ["a" * 100, "日本語の長い文" * 9, "short and long " * 5, " ", "x"])
def test_nothing_is_lost_where_lines_end(width: int, text: str) -> None:
    lines = packed([text], width, "   ")
    assert "".join(line.strip() for line in lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(signs, lines)) <= max(width, 11)


def test_a_text_hangs_behind_its_head_or_stands_below_it() -> None:
    assert hanging("head  ", "one two three", 14, least=4) == ["head  one two", "      three"]
    assert hanging("head  ", "one two three", 14, least=10) == ["head", "  one two", "  three"]


@pytest.mark.parametrize("width", [10, 20, 40, 60])
def test_a_table_of_names_alone_is_as_wide_as_its_terminal(width: int) -> None:
    columns = [Column("JOB"), Column("STATE"), Column("ROUND", right=True)]
    lines = table(columns, [["llama-7b-pretrain-of-the-second-kind", "running", "4"]], width)
    assert max(map(len, lines)) <= width
    if width > 20:
        assert lines[1].endswith("running      4"), "a name is cut before anything else"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("day", ["2026-01-30", "2026-01-31"])
def test_events_of_another_day_have_their_room_too(width: int, day: str) -> None:
    screen = replace(
        screen_for("table"), width=width, terminal=True, now=datetime(2026, 1, 31, 12, tzinfo=UTC)
    )
    sentence = "rank 1 on gpu-node-017.rack4 raised ValueError: loss is not finite " * 2
    event = JobEvent(f"{day}T10:00:00.000Z", EventKind.INTERRUPTED, sentence)
    lines = text_rounds.event_line(event, screen).split("\n")
    assert max(map(signs, lines)) <= width
    assert " ".join(line.strip() for line in lines).endswith(sentence.strip())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_of_the_doctor_ends_where_the_screen_does(width: int) -> None:
    found = [
        Finding(
            "shared memory", Grade.WARN, "only 64 MB at /dev/shm, loaders take more", "mount more of it " * 5
        )
    ]
    lines = report(found, replace(screen_for("table"), width=width, terminal=True))
    assert max(map(signs, lines)) <= width


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log folder of a job of long names that has failed."""
    root = tmp_path_factory.mktemp("logs")
    script = root / "fails.py"
    script.write_text(
        "raise ValueError('loss is not finite: nan at batch 4711 of /data/a-long-name/part-42.tar')\n"
    )
    job = "llama-7b-pretrain-of-the-second-kind"
    command = [
        sys.executable,
        "-m",
        "nvrx_launcher",
        "--standalone",
        "--rdzv-id",
        job,
        "--nproc-per-node",
        "2",
    ]
    command += ["--node-id", "gpu-node-017.rack4.example.org", "--max-restarts", "1", "--startup-grace", "0"]
    command += ["--log-dir", str(root / "logs"), str(script)]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False, cwd=root)
    assert (root / "logs" / job / "history.jsonl").is_file()
    return root / "logs"


def shown(folder: Path, verb: list[str], width: int) -> str:
    """What a verb writes on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR", "NVRX_ETCD_ENDPOINTS"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "nvrx_launcher.ctl", *verb, "--log-dir", str(folder)]
    with subprocess.Popen(
        [*command, "--etcd", "127.0.0.1:1"], env=environment, stdout=theirs, stderr=subprocess.DEVNULL
    ) as told:
        os.close(theirs)
        read = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            read += part
        told.wait(30)
    os.close(ours)
    return read.decode().replace("\r\n", "\n")


@pytest.mark.e2e
@pytest.mark.parametrize("verb", ["ps", "status", "rounds", "events", "why", "trace"])
def test_no_line_is_wider_than_the_terminal(remembered: Path, verb: str) -> None:
    """But a path, which stands alone, so that it can be taken from the screen."""
    job = next(remembered.iterdir()).name
    for width in (40, 80) if verb in ("why", "trace") else (40,):
        out = shown(remembered, [verb] if verb == "ps" else [verb, job], width)
        lines = ANSI.sub("", out).split("\n")
        assert lines
        assert [line for line in lines if signs(line) > width and not re.fullmatch(r" {2}/\S+", line)] == []
        if verb == "rounds":
            assert "\x1b[1;31mfailed" in out


def test_who_got_on_during_a_hang_is_not_said_to_have_waited() -> None:
    def stack(rank: int, silent_s: float, *, hung: bool = False) -> Stack:
        return Stack(rank, "n0", "host-a", hung, 30, "", silent_s, "", ())

    stacks = (stack(0, 0.1), stack(1, 60.0, hung=True), stack(2, 58.0), stack(3, 0.0))
    told = text_rounds.why(Why("llama", 0, 0, "a rank hangs", None, stacks=stacks), screen_for("table"))
    marks = {
        line.split()[1]: line.partition(": ")[2].partition(",")[0]
        for line in told
        if line.startswith("  rank ")
    }
    assert marks == {"0": "got on", "1": "hung", "2": "waited", "3": "waited"}
