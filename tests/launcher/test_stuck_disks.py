"""Disks that never answer: a log folder on a file system that is frozen, and FIFOs that nobody opens.

What writes there waits in the kernel, uninterruptibly in the first case: not even SIGKILL ends it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from keeper_kit import Bench, alive, bench, marked, python, reap_orphans

from nvrx_async.aside import aside
from nvrx_launcher.clock import now
from nvrx_launcher.errors import NotReadyError, UsageError
from nvrx_launcher.keeper import processes
from nvrx_launcher.keeper_events import KeeperLost, RankExited, RankStarted
from nvrx_launcher.keeper_link import Keeper
from nvrx_launcher.live import MOST_LOOKS, LiveAnswers
from nvrx_launcher.log_folder import made
from nvrx_launcher.rank_watch import RankWatch

WRITES = python("import time\nwhile True: print('x' * 100_000); time.sleep(0.01)")
MIB = 1 << 20


class Disk:
    """A small ext4 of its own, in a file, that stops answering when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._frozen = False

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", self.folder], check=True, timeout=20)
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            subprocess.run(["fsfreeze", "--unfreeze", self.folder], check=True, timeout=20)
        self._frozen = False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("fsfreeze", "mkfs.ext4", "mount"))):
        pytest.skip("needs root, fsfreeze and loop devices")
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=30)
    mounted = subprocess.run(
        ["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no loop device: {mounted.stderr}")
    found = Disk(folder)
    try:
        yield found
    finally:
        found.thaw()
        subprocess.run(["umount", folder], check=True, timeout=30)


def waits(pid: int) -> bool:
    """Whether it sleeps where no signal reaches it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"


async def until_it_waits(pid: int) -> None:
    with anyio.fail_after(20):
        while not waits(pid):  # noqa: ASYNC110 - the kernel tells nobody
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
            assert waits(keeper.pid), "it was not the keeper that ended them"
            lost = await b.until(KeeperLost)
            assert lost.how == "stuck: not even SIGKILL ends it"
            assert [one.split()[0] for one in lost.alive] == [str(keeper.pid)], "which makes the node unfit"
    assert marked(tag) == []


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
