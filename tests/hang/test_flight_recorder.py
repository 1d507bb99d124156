"""Torch's flight recorder, asked through a FIFO; the rank here is a program that does what torch does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from nvrx_async.hang import flight_recorder
from nvrx_async.hang.evidence import Asked, gather
from nvrx_async.hang.flight_recorder import DUMPS, KEPT_AS, PIPE, dump, places, variables

RANK = """
import os, select, sys
stem, rank, dumps = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"], sys.argv[1], sys.argv[2]
os.mkfifo(f"{stem}{rank}.pipe", 0o666)
pipe = os.open(f"{stem}{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
select.select([pipe], [], [])
os.read(pipe, 128)
if dumps == "yes":
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "wb") as file:
        file.write(b"what the collectives were")
select.select([], [], [])
"""


@contextmanager
def rank(environment: dict[str, str], *, dumps: bool = True, warm: bool = False) -> Iterator[int]:
    """Pid of a process that offers a dump. `warm`: it was told its environment after it was started."""
    program = f"import os\nos.environ.update({environment!r})\n{RANK}" if warm else RANK
    command = [sys.executable, "-c", program, "3", "yes" if dumps else "no"]
    given = {**os.environ, **({} if warm else environment)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=given) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def sleeper(environment: dict[str, str]) -> Iterator[int]:
    with subprocess.Popen(["sleep", "100"], env={**os.environ, **environment}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def given(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "rank_3").mkdir()
    return variables({"TORCH_FR_BUFFER_SIZE": "100"}, tmp_path, tmp_path / "rank_3")


async def test_the_dump_is_asked_for_and_kept_beside_the_logs(tmp_path):
    with rank(given(tmp_path)) as pid:
        assert await dump(3, pid, tmp_path / "rank_3", {}) == KEPT_AS
    assert (tmp_path / "rank_3" / KEPT_AS).read_bytes() == b"what the collectives were"


async def test_a_rank_that_was_warm_is_asked_where_it_was_told_to_be(tmp_path):
    environment = given(tmp_path)
    with rank(environment, warm=True) as pid:
        asked = Asked(3, "h", pid, None, tmp_path / "rank_3", hung=True, recorder=places({}, environment))
        await gather([asked], within_s=10)
    assert (tmp_path / "rank_3" / KEPT_AS).read_bytes() == b"what the collectives were"


def test_what_a_person_set_is_a_place_too(tmp_path):
    assert places({PIPE: "/p", "HOME": "/h"}, {DUMPS[0]: "/d"}) == {PIPE: "/p", DUMPS[0]: "/d"}


async def test_a_place_that_the_person_chose_is_left_as_it_is(tmp_path):
    chosen = {"TORCH_FR_BUFFER_SIZE": "9", PIPE: f"{tmp_path}/mine-", DUMPS[0]: f"{tmp_path}/dump-"}
    assert variables(chosen, tmp_path, tmp_path) == {}
    folder = tmp_path / "rank_3"
    folder.mkdir()
    with rank(chosen) as pid:
        assert await dump(3, pid, folder, {}) == KEPT_AS
    assert (folder / KEPT_AS).read_bytes() == (tmp_path / "dump-3").read_bytes()


async def test_it_is_part_of_the_evidence(tmp_path):
    with rank(given(tmp_path)) as pid:
        await gather([Asked(3, "h", pid, None, tmp_path / "rank_3", hung=True)], within_s=10)
    assert orjson.loads((tmp_path / "rank_3" / "hang.json").read_bytes())["flight_recorder"] == KEPT_AS


async def test_evidence_waits_no_longer_than_it_may_for_a_recorder_that_is_stuck(tmp_path, monkeypatch):
    monkeypatch.setattr(flight_recorder, "LOOKS_AFTER_S", (3600.0,))
    with rank(given(tmp_path), dumps=False) as pid:
        found = await gather([Asked(3, "h", pid, None, tmp_path / "rank_3", hung=True)], within_s=0.3)
    assert found[3].state
    assert orjson.loads((tmp_path / "rank_3" / "hang.json").read_bytes())["flight_recorder"] is None


async def test_a_recorder_that_does_not_dump_in_time_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(flight_recorder, "LOOKS_AFTER_S", (0.01, 0.01))
    with rank(given(tmp_path), dumps=False) as pid:
        assert await dump(3, pid, tmp_path / "rank_3", {}) == ""


async def test_a_dump_of_earlier_is_not_taken_for_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(flight_recorder, "LOOKS_AFTER_S", (0.01, 0.01, 0.01))
    environment = given(tmp_path)
    (tmp_path / "rank_3" / f"{KEPT_AS}-3").write_bytes(b"old")
    with rank(environment, dumps=False) as pid:
        assert await dump(3, pid, tmp_path / "rank_3", {}) == ""


@pytest.mark.parametrize("pipe", ["nothing", "file", "unread"])
async def test_what_is_no_recorders_pipe_is_not_written_to(tmp_path, pipe):
    path = tmp_path / "x3.pipe"
    if pipe == "file":
        path.write_bytes(b"mine")
    elif pipe == "unread":
        os.mkfifo(path)
    with sleeper({PIPE: f"{tmp_path}/x"}) as pid:
        assert await dump(3, pid, tmp_path, {}) == ""
    assert pipe != "file" or path.read_bytes() == b"mine"


@pytest.mark.parametrize("size", [None, "", "0", "many"])
def test_a_recorder_that_is_off_is_left_off(tmp_path, size):
    environment = {} if size is None else {"TORCH_NCCL_TRACE_BUFFER_SIZE": size}
    assert variables(environment, tmp_path, tmp_path) == {}


async def test_a_process_that_is_gone_is_not_asked(tmp_path):
    assert await dump(0, 2**22 + 1, tmp_path, {}) == ""
