"""Bytes of output are counted once, whoever looks, and whoever is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from nvrx_launcher.tracing_logs import LogCount, log_bytes

pytestmark = pytest.mark.anyio


def written(folder: Path, out: int, err: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in (("stdout.log", out), ("stderr.log", err)):
        with (folder / name).open("ab") as file:
            file.write(b"x" * size)
    return folder


async def test_ranks_of_two_rounds_count_once_each(tmp_path: Path) -> None:
    count = LogCount()
    first, second = tmp_path / "0", tmp_path / "1"
    count.begin(first)
    assert await count.new_bytes(lambda: [first]) == 0, "nothing is written yet"
    written(first, 100, 7)
    assert await count.new_bytes(lambda: [first]) == 107
    assert await count.new_bytes(lambda: [first]) == 0
    written(first, 50)  # its last words, before the next round begins
    count.begin(second)
    written(second, 3)
    assert await count.new_bytes(lambda: [second]) == 53
    written(second, 4)
    assert await count.new_bytes(lambda: [second]) == 4
    assert await count.new_bytes(list) == 0
    assert await count.new_bytes(list) == 0, "what is forgotten does not come again"


async def test_a_rank_that_nobody_looked_at_while_it_lived_counts(tmp_path: Path) -> None:
    count = LogCount()
    count.begin(written(tmp_path / "0", 11))
    count.begin(written(tmp_path / "1", 13))
    assert await count.new_bytes(list) == 24


async def test_a_rank_that_begins_again_is_no_news(tmp_path: Path) -> None:
    count, folder = LogCount(), written(tmp_path, 11)
    count.begin(folder)
    assert await count.new_bytes(lambda: [folder]) == 11
    count.begin(folder)
    assert await count.new_bytes(lambda: [folder]) == 0


async def test_two_that_look_at_once_count_once(tmp_path: Path) -> None:
    folder = written(tmp_path, 10)
    entered, go_on = threading.Event(), threading.Event()

    def slow(folders: Iterable[Path]) -> dict[Path, int]:
        found = log_bytes(folders)  # the first one is slow with an old number
        if not entered.is_set():
            entered.set()
            assert go_on.wait(30)
        return found

    count = LogCount(slow, answer_limit_s=60)
    count.begin(folder)
    found: list[int] = []

    async def look(alive: list[Path]) -> None:
        found.append(await count.new_bytes(lambda: alive))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look, [folder])
        await anyio.to_thread.run_sync(entered.wait)
        written(tmp_path, 5)
        tasks.start_soon(look, [])
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    assert sum(found) == 15
    assert await count.new_bytes(list) == 0


async def test_a_file_that_shrinks_takes_nothing_back(tmp_path: Path) -> None:
    count, folder = LogCount(), written(tmp_path, 10)
    count.begin(folder)
    assert await count.new_bytes(lambda: [folder]) == 10
    (folder / "stdout.log").write_bytes(b"")
    assert await count.new_bytes(lambda: [folder]) == 0
    written(folder, 4)
    assert await count.new_bytes(lambda: [folder]) == 4


async def test_a_disk_that_does_not_answer_holds_nobody_and_is_asked_once(tmp_path: Path) -> None:
    folder = written(tmp_path, 10)
    answers, left, asked = threading.Event(), threading.Event(), []

    def sizes(folders: Iterable[Path]) -> dict[Path, int]:
        asked.append(folders)
        answers.wait()
        left.set()
        return log_bytes(folders)

    count = LogCount(sizes, answer_limit_s=0.05)
    count.begin(folder)
    with anyio.fail_after(10):
        assert await count.new_bytes(lambda: [folder]) == 0
        assert await count.new_bytes(lambda: [folder]) == 0
    assert len(asked) == 1
    answers.set()
    left.wait()
    with anyio.fail_after(10):
        while (new := await count.new_bytes(lambda: [folder])) == 0:
            await anyio.lowlevel.checkpoint()
    assert new == 10


async def test_where_no_thread_is_left_it_counts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    count, folder = LogCount(), written(tmp_path, 10)
    count.begin(folder)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", none_left)
        assert await count.new_bytes(lambda: [folder]) == 0
    assert await count.new_bytes(lambda: [folder]) == 10
