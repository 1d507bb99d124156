"""`nvrx logs -f`: what is added to logs, those of later rounds too."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from nvrx_async.job.codec import encode
from nvrx_async.job.records import Outcome
from nvrx_launcher.ctl.ending import ended
from nvrx_launcher.ctl.follow import follow
from nvrx_launcher.ctl.logs import Log, _find, _folders


def log_of(root: Path, number: int, rank: int) -> Path:
    path = root / "attempt_0" / f"round_{number}" / f"rank_{rank}" / "stdout.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def test_added_lines_are_told_once_in_the_rounds_that_begin_too(tmp_path):
    root = tmp_path / "llama"
    first = log_of(root, 0, 1)
    append(first, "shown\nhalf")
    written, receive = anyio.create_memory_object_stream[str](100)

    def write(log: Log, lines: list[bytes]) -> None:
        for line in lines:
            written.send_nowait(f"{log.path.parent.parent.name} {line.decode()}")

    def look() -> tuple[list[Path], list[Log]]:
        return _folders([root, tmp_path / "elsewhere"]), _find([root], None, None, 1)

    before = len(os.listdir("/proc/self/fd"))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks, receive, written:
            tasks.start_soon(follow, look, {first: len("shown\n")}, write)
            append(first, " a line\n")
            assert await receive.receive() == "round_0 half a line"
            second = log_of(root, 1, 1)
            log_of(root, 1, 0).touch()
            append(second, "next\n")
            assert await receive.receive() == "round_1 next"
            append(first, "late\n")
            assert await receive.receive() == "round_0 late"
            append(second, "more\nand more\n")
            assert [await receive.receive() for _ in range(2)] == ["round_1 more", "round_1 and more"]
            append(log_of(root, 2, 1), "last\n")
            assert await receive.receive() == "round_2 last"
            tasks.cancel_scope.cancel()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_what_is_there_when_it_is_over_is_told_to_the_last_byte(tmp_path):
    root, over = tmp_path / "llama", anyio.Event()
    first = log_of(root, 0, 0)
    append(first, "begun\n")
    written = []

    def look() -> tuple[list[Path], list[Log]]:
        return [root], [Log(0, "stdout", first), *_find([root], None, None, None)]

    def write(log: Log, lines: list[bytes]) -> None:
        written.extend(lines)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, look, {}, write, over.wait)
            append(first, "goes on\nand ends without a line end")
            append(log_of(root, 1, 0), "of a round that began at the last moment\n")
            over.set()
    assert written[:2] == [b"begun", b"goes on"]
    assert set(written[2:]) == {b"and ends without a line end", b"of a round that began at the last moment"}


async def test_the_folder_tells_of_the_end_where_there_is_no_etcd_any_more(tmp_path):
    root = tmp_path / "llama"
    outcome = Outcome(success=False, exit_code=1, reason="spent", round=2, decided_utc="2026-01-01T00:00:00Z")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            found = []

            async def wait() -> None:
                found.append(await ended(None, "llama", [tmp_path / "elsewhere", root], attempt=0))

            root.mkdir()
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            append(root / "history.jsonl", '{"record":"outcome","schema":1')
            await anyio.wait_all_tasks_blocked()
            assert not found
            append(root / "history.jsonl", "," + encode(outcome).decode()[12:] + "\n")
    assert (found[0].state.value, found[0].outcome.reason) == ("failed", "spent")


def test_a_traceback_stands_below_what_its_rank_did_until_then(tmp_path):
    for rank in (10, 2):
        out = log_of(tmp_path, 0, rank)
        append(out, "step 3\n")
        append(out.with_name("stderr.log"), "ValueError\n")
    found = [(log.rank, log.stream) for log in _find([tmp_path], None, None, None)]
    assert found == [(2, "stdout"), (2, "stderr"), (10, "stdout"), (10, "stderr")]
