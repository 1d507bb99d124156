"""Disks that never answer: a log folder on a file system that is frozen, and FIFOs that nobody opens.

What writes there waits in the kernel, uninterruptibly in the first case: not even SIGKILL ends it.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from keeper_kit import Bench, alive, bench, marked, python, reap_orphans
from support.frozen_disk import Disk, mounted_disk, waits_for_it

from nvrx_async.aside import aside
from nvrx_launcher.clock import now
from nvrx_launcher.errors import NotReadyError, UsageError
from nvrx_launcher.keeper import processes
from nvrx_launcher.keeper.linux import boottime_s
from nvrx_launcher.keeper_events import Fenced, KeeperLost, RankExited, RankStarted
from nvrx_launcher.keeper_link import Keeper
from nvrx_launcher.live import MOST_LOOKS, LiveAnswers
from nvrx_launcher.log_folder import made
from nvrx_launcher.preflight import check_log_folder
from nvrx_launcher.rank_watch import RankWatch

WRITES = python("import time\nwhile True: print('x' * 100_000); time.sleep(0.01)")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted_disk(tmp_path) as found:
        yield found


async def until_it_waits(pid: int) -> None:
    with anyio.fail_after(20):
        while not waits_for_it(pid):  # noqa: ASYNC110 - the kernel tells nobody
            await anyio.sleep(0.01)


async def until_dead(pid: int) -> None:
    with anyio.fail_after(20):
        while alive(pid):  # noqa: ASYNC110 - it may be reaped by another process
            await anyio.sleep(0.01)


@contextmanager
def answering_at_last(disk: Disk, keeper: Keeper) -> Iterator[None]:
    """The keeper that could not die does when the disk answers again, and leaves its dead ranks to this process."""
    try:
        yield
    finally:
        disk.thaw()
        keeper._process.wait(20)
        reap_orphans()


@pytest.mark.parametrize("why", ["fence", "stop", "rank dies"])
async def test_ranks_end_though_their_keeper_waits_for_the_disk_of_its_logs(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("nvrx_launcher.keeper_link._LEAVE_WITHIN_S", 0.3)
    sweep = "nvrx_launcher.keeper_link.SWEEP_WITHIN_S"
    monkeypatch.setattr(sweep, 1.0)
    tag = f"test/{disk.folder.parent.name}/stuck"
    async with Keeper.start(1, tag, unkillable_after_s=0.1, told_within_s=0.2) as keeper:
        with answering_at_last(disk, keeper):
            b = Bench(keeper, disk.folder, tag)
            b.run(WRITES, WRITES, good_for_s=3.0 if why == "fence" else 60.0)
            ranks = [(await b.until(RankStarted)).pid for _ in range(2)]
            disk.freeze()
            await until_it_waits(keeper.pid)
            if why == "stop":
                keeper.stop(0, 0.1)
            elif why == "rank dies":
                os.kill(ranks[0], signal.SIGKILL)
            for pid in ranks:
                await until_dead(pid)
            assert waits_for_it(keeper.pid), "it was not the keeper that ended them"
            lost = await b.until(KeeperLost)
            assert lost.how == "stuck: not even SIGKILL ends it"
            assert [one.split()[0] for one in lost.alive] == [str(keeper.pid)], "which makes the node unfit"
    assert marked(tag) == []


async def test_a_disk_that_answers_late_costs_no_rank_whose_lease_was_renewed(disk: Disk) -> None:
    """What its agent said meanwhile lies unread before the keeper, whose own deadline has passed."""
    async with bench(disk.folder) as b:
        b.run(WRITES, good_for_s=1.0)
        pid = (await b.until(RankStarted)).pid
        disk.freeze()
        await until_it_waits(b.keeper.pid)
        b.keeper.good_until(boottime_s() + 60)
        await anyio.sleep(1.2)
        had_bytes = b.path(0).stat().st_size
        disk.thaw()
        with anyio.fail_after(20):
            while b.path(0).stat().st_size < had_bytes + 10_000_000:  # noqa: ASYNC110 - a file tells nobody
                await anyio.sleep(0.01)
        assert alive(pid)
        assert not b.all(Fenced)


async def test_a_keeper_that_tells_no_end_is_given_up(tmp_path: Path) -> None:
    async with bench(tmp_path, told_within_s=0.2) as b:
        b.run("echo up; exec sleep 1000", "sleep 1000")
        await b.wait_for_line("up")
        victim = b.all(RankStarted)[0].pid
        os.kill(b.keeper.pid, signal.SIGSTOP)
        os.kill(victim, signal.SIGKILL)
        assert (await b.until(KeeperLost)).alive == ()


async def test_ends_that_are_told_cost_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, told_within_s=0.05) as b:
        b.run("exit 0", "sleep 0.2", "true")
        await b.gone()
        assert len(b.all(RankExited)) == 3
        assert processes.read_stat(b.keeper.pid) is not None


async def test_what_waits_for_ever_is_waited_for_by_nobody(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with anyio.move_on_after(0.1) as gave_up:
        await aside(pipe.read_bytes)
    assert gave_up.cancelled_caught
    (waiting,) = (one for one in threading.enumerate() if one.name == "aside")
    assert waiting.daemon, "or the process could not end"
    pipe.write_bytes(b"")
    await anyio.to_thread.run_sync(waiting.join)


async def test_what_is_raised_aside_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        await aside(divmod, 1, 0)
    assert await aside(divmod, 7, 2) == (3, 1)


async def test_a_log_folder_that_does_not_answer_at_the_start_is_said(tmp_path, monkeypatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr("nvrx_launcher.log_folder._made", lambda folder: answers.wait())
    monkeypatch.setattr("nvrx_launcher.log_folder.ANSWER_LIMIT_S", 0.1)
    with pytest.raises(NotReadyError, match=r"--log-dir: the disk of /x has not answered for 0.1 s"):
        await made(Path("/x"))
    answers.set()


async def test_a_log_folder_that_cannot_be_made_is_the_persons_to_change(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--log-dir: .*/file/job: Not a directory"):
        await made(tmp_path / "file" / "job")
    assert await made(tmp_path / "job") == 0


async def test_people_who_ask_a_node_wait_for_no_disk(monkeypatch) -> None:
    answers, looks = threading.Event(), []

    def sizes(folders):
        looks.append(folders)
        answers.wait()
        return [7]

    monkeypatch.setattr("nvrx_launcher.live._sizes", sizes)
    monkeypatch.setattr("nvrx_launcher.live.LOOK_LIMIT_S", 0.05)
    live = LiveAnswers(RankWatch(None, lease_ttl_s=6, warn=print, inherited={}), lambda: 0, now)
    for _ in range(MOST_LOOKS + 2):
        assert await live._output_bytes([Path("/x")]) == [0]
    assert len(looks) == MOST_LOOKS, "no more threads than these wait for it"
    answers.set()
    for thread in [one for one in threading.enumerate() if one.name == "aside"]:
        await anyio.to_thread.run_sync(thread.join)
    assert await live._output_bytes([Path("/x")]) == [7]


async def test_no_thread_left_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    with pytest.raises(OSError, match="can't start new thread; the limit of processes") as raised:
        await aside(int)
    assert raised.value.errno == errno.EAGAIN


async def test_what_comes_when_nobody_waits_any_more_is_given_back(tmp_path: Path) -> None:
    """A descriptor that a disk hands out late would be lost: nobody has it to close it."""
    pipe, given = tmp_path / "pipe", threading.Event()
    closed: list[int] = []

    def close(descriptor: int) -> None:
        os.close(descriptor)
        closed.append(descriptor)
        given.set()

    os.mkfifo(pipe)
    with anyio.move_on_after(0.05):
        await aside(os.open, pipe, os.O_WRONLY, unwanted=close)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # now the writer's open returns
    await anyio.to_thread.run_sync(given.wait, 20)
    os.close(reader)
    assert len(closed) == 1


async def test_what_comes_in_the_moment_of_a_cancellation_is_given_back_too() -> None:
    given: list[int] = []
    done = threading.Event()

    def work() -> int:
        done.wait(20)
        return 7

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: aside(work, unwanted=given.append))
            await anyio.wait_all_tasks_blocked()
            done.set()
            (thread,) = (one for one in threading.enumerate() if one.name == "aside")
            thread.join(20)  # its answer waits in the loop, which this test holds
            scope.cancel()
    assert given == [7]


async def test_who_cannot_look_leaves_the_looks_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none_left(*_: object) -> list[int]:
        raise OSError(errno.EAGAIN, "the limit of threads is reached")

    answers = LiveAnswers(None, lambda: 0, now)  # type: ignore[arg-type]
    with monkeypatch.context() as full:
        full.setattr("nvrx_launcher.live.aside", none_left)
        for _ in range(2 * MOST_LOOKS):
            assert await answers._output_bytes([Path("/"), Path("/")]) == [0, 0]
    assert answers._may_look.acquire(blocking=False), "none is lost"


def test_a_start_does_not_wait_for_ever_for_the_disk_of_its_logs(tmp_path: Path, monkeypatch) -> None:
    answers = threading.Event()
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **named: answers.wait(20) and exists(path, **named))
    with pytest.raises(NotReadyError, match=r"has not answered for 0\.05 s"):
        check_log_folder(tmp_path, 0.05)
    answers.set()
    check_log_folder(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        check_log_folder(tmp_path / "file" / "logs")
