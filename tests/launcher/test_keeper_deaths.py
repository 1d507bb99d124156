"""Deaths and freezes of agent and keeper: what they had started does not go on without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from keeper_kit import PATIENCE_S, alive, bench, bystander, death, marked, reap_orphans

from nvrx_launcher.keeper import processes
from nvrx_launcher.keeper.linux import boottime_s
from nvrx_launcher.keeper_events import KeeperLost, RankExited, RankStarted
from nvrx_launcher.sweep import sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
# A rank that ignores SIGTERM, with a child, and a grandchild that is an orphan in a session of its own.
FAMILY = "trap '' TERM; sleep 1000 & (setsid sh -c 'sleep 1000' &) ; echo up; while :; do sleep 1; done"
FAMILY_SIZE = 5


@contextmanager
def agent(tag: str, folder: Path, good_for_s: float, *lines: str) -> Iterator[subprocess.Popen[str]]:
    """A process with a keeper and ranks, started from the same shell as a bystander would be."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'launcher'}"}
    words = [
        sys.executable,
        str(Path(__file__).with_name("agent_for_test.py")),
        tag,
        str(folder),
        str(good_for_s),
    ]
    with subprocess.Popen([*words, *lines], env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            sweep(tag)
    reap_orphans()


def is_rank(pid: int) -> bool:
    """Whether it is the shell of a FAMILY itself: its line, in a session of its own."""
    line = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"trap" in line and os.getsid(pid) == pid


async def until_marked(tag: str, count: int) -> list[int]:
    with anyio.fail_after(PATIENCE_S):
        while len(found := marked(tag)) < count:  # noqa: ASYNC110 - other processes start: no event tells
            await anyio.sleep(0.01)
    return found


async def test_sigkill_of_an_agent_ends_all_its_processes_but_no_bystander(tmp_path: Path) -> None:
    tag = f"test/{tmp_path}/1"
    with bystander() as neighbour, agent(tag, tmp_path, 60, FAMILY, FAMILY) as process:
        found = await until_marked(tag, 2 * FAMILY_SIZE + 1)
        process.kill()
        with anyio.fail_after(1):
            for pid in found:
                await death(pid)
        assert marked(tag) == []
        assert neighbour.poll() is None


async def test_ranks_of_a_frozen_agent_are_dead_by_its_deadline(tmp_path: Path) -> None:
    tag = f"test/{tmp_path}/1"
    with agent(tag, tmp_path, 1.0, FAMILY) as process:
        found = await until_marked(tag, FAMILY_SIZE + 1)
        assert process.stdout is not None
        keeper = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)
        frozen_s = boottime_s()
        for pid in set(found) - {keeper}:
            await death(pid)
        assert boottime_s() - frozen_s < 5
        assert marked(tag) == [keeper]


async def test_ranks_die_with_their_keeper_also_when_no_agent_sweeps(tmp_path: Path) -> None:
    tag = f"test/{tmp_path}/1"
    with agent(tag, tmp_path, 60, FAMILY, FAMILY) as process:
        found = await until_marked(tag, 2 * FAMILY_SIZE + 1)
        assert process.stdout is not None
        keeper = int(process.stdout.readline())
        ranks = [pid for pid in found if is_rank(pid)]
        assert len(ranks) == 2
        process.send_signal(signal.SIGSTOP)
        os.kill(keeper, signal.SIGKILL)
        for pid in ranks:
            await death(pid)
        process.kill()
        # Helpers have no parent-death signal: the successor on this host sweeps them before it says "dead".
        assert len(sweep(tag).killed) >= 2
        assert marked(tag) == []


def children() -> set[int]:
    return {stat.pid for stat in processes.table().values() if stat.parent == os.getpid()}


async def test_sigkill_of_a_keeper_ends_its_ranks_and_the_next_keeper_works(tmp_path: Path) -> None:
    with bystander() as etcd:
        others = children()
        async with bench(tmp_path) as b:
            b.run(FAMILY, FAMILY, round=7)
            await b.wait_for_line("up", 0)
            await b.wait_for_line("up", 1)
            found = await until_marked(b.tag, 2 * FAMILY_SIZE + 1)
            os.kill(b.keeper.pid, signal.SIGKILL)
            lost = await b.until(KeeperLost)
            assert (lost.generation, lost.round, lost.alive) == (1, 7, ())
            assert "SIGKILL" in lost.how
            assert not any(alive(pid) for pid in found)
            # Reaped as well, but for the keepers of others.
            assert children() == others
            b.run("true", round=8)  # to a keeper that is gone: no effect
        assert etcd.poll() is None
        async with bench(tmp_path, generation=2) as b:
            b.run("exit 0", round=8)
            assert (await b.until(RankExited)).exit_code == 0
            await b.gone()
        assert etcd.poll() is None


async def test_a_process_that_lost_its_mark_is_swept_with_its_rank(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("env -i sleep 1000 & echo $!; echo up; exec sleep 1000")
        await b.wait_for_line("up")
        helper = int(b.path(0).read_text().split()[0])
        os.kill(b.keeper.pid, signal.SIGKILL)
        await b.until(KeeperLost)
        assert not alive(helper)


@pytest.mark.parametrize("order", ["fence", "stop"])
async def test_a_frozen_keeper_cannot_keep_ranks_alive(tmp_path: Path, order: str) -> None:
    async with bench(tmp_path, unkillable_after_s=0.1) as b:
        b.run(FAMILY, good_for_s=1.0 if order == "fence" else 60)
        await b.until(RankStarted)
        os.kill(b.keeper.pid, signal.SIGSTOP)
        if order == "stop":
            b.keeper.stop(0, 0.1)
        lost = await b.until(KeeperLost)
        assert lost.alive == ()


async def test_a_frozen_keeper_does_not_hold_up_the_end_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvrx_launcher.keeper_link._LEAVE_WITHIN_S", 0.3)
    async with bench(tmp_path) as b:
        b.run(FAMILY)
        await b.wait_for_line("up")
        os.kill(b.keeper.pid, signal.SIGSTOP)


async def test_the_agent_may_end_while_its_keeper_dies(tmp_path: Path) -> None:
    for _ in range(5):
        async with bench(tmp_path) as b:
            b.run(FAMILY)
            await b.until(RankStarted)
            os.kill(b.keeper.pid, signal.SIGKILL)
            b.keeper.stop(0, 0)  # into a socket that is closing


async def test_an_agent_that_talks_nonsense_is_treated_as_gone(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run(FAMILY)
        await b.wait_for_line("up")
        b.keeper._writer.write(b"\xff\xff\xff\xff nonsense")
        await b.until(KeeperLost)


async def test_a_keeper_that_talks_nonsense_is_treated_as_lost(tmp_path: Path) -> None:
    program = tmp_path / "keeper.py"
    program.write_text(
        "import os, sys, time, struct\n"
        "fd = int(sys.argv[sys.argv.index('--control') + 1])\n"
        'body = b\'{"report": "ready"}\'\n'
        "os.write(fd, struct.pack('>I', len(body)) + body + b'\\0\\0\\0\\2no')\n"
        "time.sleep(1000)\n"
    )
    async with bench(tmp_path, program=program) as b:
        assert "SIGKILL" in (await b.until(KeeperLost)).how
