"""Output of ranks: complete, in files, never a reason to block a rank, and cheap for the agent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import anyio
import pytest
from keeper_kit import Bench, bench, death, python

from nvrx_launcher.keeper.linux import boottime_s
from nvrx_launcher.keeper.spool import INDEX_EVERY_BYTES, INDEX_RECORD, Spool
from nvrx_launcher.keeper_events import Grew, RankExited, RankStarted, SpoolWarning


def index_of(path: Path) -> list[tuple[int, float]]:
    return list(INDEX_RECORD.iter_unpack(Path(f"{path}.idx").read_bytes()))


async def test_a_burst_of_eight_ranks_arrives_whole(tmp_path: Path) -> None:
    lines, ranks = 25_000, 8
    code = (
        "import sys\nmark = sys.argv[1]\n"
        f"for n in range({lines}):\n"
        "    sys.stdout.write(f'{mark} {n} ' + 'x' * (n % 80) + '\\n')\n"
        "    if n % 10 == 0: sys.stderr.write(f'{mark} error {n}\\n')\n"
    )
    async with bench(tmp_path) as b:
        b.run(*(f"{python(code)} {rank}" for rank in range(ranks)))
        gone = await b.gone()
        assert gone.lost_bytes == 0
        for rank in range(ranks):
            expected = "".join(f"{rank} {n} {'x' * (n % 80)}\n" for n in range(lines))
            assert b.path(rank).read_text() == expected
            errors = "".join(f"{rank} error {n}\n" for n in range(0, lines, 10))
            assert b.path(rank, "stderr").read_text() == errors


async def test_what_was_written_right_before_sigkill_is_in_the_file_when_the_end_is_told(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as b:
        os.mkfifo(tmp_path / "go")
        b.run("echo up; read go < go; head -c 900000 /dev/zero; echo last words >&2; kill -KILL $$")
        pid = (await b.until(RankStarted)).pid
        await b.wait_for_line("up")
        os.kill(b.keeper.pid, signal.SIGSTOP)  # output and end reach it at once
        await anyio.to_thread.run_sync((tmp_path / "go").write_text, "\n")
        await death(pid)
        os.kill(b.keeper.pid, signal.SIGCONT)
        await b.until(RankExited)
        assert b.path(0).stat().st_size == 900_003
        assert b.path(0, "stderr").read_text() == "last words\n"
        await b.gone()


async def test_a_leftover_that_holds_the_pipe_does_not_delay_the_end(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("(setsid sh -c 'echo from helper; sleep 1000' &) ; sleep 0.2; exit 0")
        assert (await b.gone()).unkillable == ()
        assert b.path(0).read_text() == "from helper\n"


async def test_a_pipe_that_a_stranger_holds_does_not_delay_the_end(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("echo said; echo up; exec sleep 1000")
        await b.wait_for_line("up")
        pid = b.all(RankStarted)[0].pid
        held = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
        try:
            b.keeper.stop(0, 0)
            await b.gone()
        finally:
            os.close(held)
        assert b.path(0).read_text() == "said\nup\n"


async def test_a_full_disk_never_blocks_a_rank_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.keeper.good_until(boottime_s() + 60)
        full = b.command(0, ["head", "-c", "3000000", "/dev/zero"], stdout_path="/dev/full")
        nowhere = b.command(1, ["sh", "-c", "echo hello; exit 4"], stdout_path="/nowhere/out")
        fine = b.command(2, ["echo", "fine"])
        b.keeper.start_ranks(0, [full, nowhere, fine])
        gone = await b.gone()
        assert gone.lost_bytes == 3_000_000 + len("hello\n")
        assert {end.local_rank: end.exit_code for end in b.all(RankExited)} == {0: 0, 1: 4, 2: 0}
        warnings = {warning.local_rank: warning for warning in b.all(SpoolWarning)}
        assert warnings[0].error == "No space left on device"
        assert warnings[1].path == "/nowhere/out"
        assert len(b.all(SpoolWarning)) == 2
        assert b.path(2).read_text() == "fine\n"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounts a small tmpfs")
async def test_a_log_that_is_a_pipe_which_nobody_reads_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.stdout")
    async with bench(tmp_path) as b:
        b.run("echo out; echo err >&2; exit 3")
        assert (await b.until(RankExited)).exit_code == 3
        assert (await b.gone()).lost_bytes == len("out\n")
    assert (tmp_path / "0.stderr").read_text() == "err\n"


async def test_a_disk_that_fills_keeps_what_it_took_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if (await anyio.run_process(mount, check=False)).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        ballast = small / "ballast"
        ballast.write_bytes(bytes(40_000))
        async with bench(tmp_path) as b:
            b.keeper.good_until(boottime_s() + 60)
            line = "head -c 50000 /dev/zero; echo written >&2; read go < go; echo more; exit 0"
            os.mkfifo(tmp_path / "go")
            b.keeper.start_ranks(0, [b.command(0, ["sh", "-c", line], stdout_path=str(small / "out"))])
            await b.until(SpoolWarning)
            ballast.unlink()
            await anyio.to_thread.run_sync((tmp_path / "go").write_text, "\n")
            gone = await b.gone()
            text = (small / "out").read_bytes()
            assert text.endswith(b"more\n")
            assert gone.lost_bytes + len(text) == 50_000 + len("more\n")
    finally:
        subprocess.run(["umount", str(small)], check=True)  # noqa: ASYNC221 - of the test, not of the product


async def test_growth_is_told_once_until_it_was_seen(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        os.mkfifo(tmp_path / "go")
        b.run("for i in 1 2 3; do echo $i; sleep 0.02; done; echo >&2; read go < go; echo after; sleep 1000")
        await until_grew(b, "stderr")
        assert [event.stream for event in b.all(Grew)] == ["stdout", "stderr"]
        b.keeper.seen(0, "stdout")  # there was more since: told at once
        await until_grew(b, "stdout")
        b.keeper.seen(0, "stdout")  # nothing new: told when it comes
        await anyio.to_thread.run_sync((tmp_path / "go").write_text, "\n")
        await until_grew(b, "stdout")
        assert b.path(0).read_text().endswith("after\n")
        assert len(b.all(Grew)) == 4
        b.keeper.stop(0, 0)
        await b.gone()


async def until_grew(b: Bench, stream: str) -> None:
    while (await b.until(Grew)).stream != stream:
        pass


async def test_the_index_tells_when_each_part_was_read(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        os.mkfifo(tmp_path / "go")
        before_s = time.time()
        b.run("echo up; read go < go; yes | head -c 300000; echo many; read go < go; echo last")
        for line in ("up", "many"):
            await b.wait_for_line(line)
            await anyio.to_thread.run_sync((tmp_path / "go").write_text, "\n")
        await b.gone()
        records = index_of(b.path(0))
        offsets = [offset for offset, _ in records]
        assert offsets[0] == 0
        assert offsets == sorted(offsets)
        assert 300_000 - INDEX_EVERY_BYTES <= offsets[-1] <= 300_020
        assert all(before_s <= at_s <= time.time() for _, at_s in records)
        assert index_of(b.path(0, "stderr")) == []


def test_a_small_line_within_a_second_needs_no_record(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "log"))
    for _ in range(100):
        spool.write(memoryview(b"line\n"))
    spool.close()
    assert (tmp_path / "log").read_bytes() == b"line\n" * 100
    assert len(index_of(tmp_path / "log")) <= 2


def test_a_spool_appends_to_what_is_there(tmp_path: Path) -> None:
    for _ in range(2):
        spool = Spool(str(tmp_path / "log"))
        spool.write(memoryview(b"line\n"))
        spool.close()
    assert (tmp_path / "log").read_bytes() == b"line\nline\n"
    assert [offset for offset, _ in index_of(tmp_path / "log")] == [0, 5]


async def test_a_rank_that_only_writes_does_not_keep_the_keeper_from_its_deadline(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.keeper.good_until(boottime_s() + 0.5)
        ranks = [b.command(n, ["yes"], stdout_path="/dev/null") for n in range(3)]
        b.keeper.start_ranks(0, ranks)
        await b.gone()
        assert {end.signal for end in b.all(RankExited)} == {signal.SIGKILL}


async def test_a_rank_with_a_terminal_draws_on_one_and_its_log_is_complete(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "print(os.isatty(0), os.isatty(1), os.isatty(2), *os.get_terminal_size(1))\n"
        "sys.stderr.write('\\r 50%\\r100%\\n')\n"
        "for n in range(20000): print(n)\n"
        "sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    async with bench(tmp_path) as b:
        b.keeper.good_until(boottime_s() + 60)
        words = ["sh", "-c", python(code)]
        b.keeper.start_ranks(
            0, [b.command(0, words, terminal=(33, 99)), b.command(1, ["sh", "-c", "test -t 1"])]
        )
        assert (await b.gone()).lost_bytes == 0
        expected = "".join(f"{n}\n" for n in range(20000))
        assert b.path(0).read_bytes().decode() == f"False True True 99 33\n{expected}"
        assert b.path(0, "stderr").read_bytes() == b"\r 50%\r100%\n"
        ends = {end.local_rank: (end.exit_code, end.signal) for end in b.all(RankExited)}
        assert ends == {0: (None, signal.SIGKILL), 1: (1, None)}


async def test_a_leftover_that_holds_the_terminal_does_not_delay_the_end(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.keeper.good_until(boottime_s() + 60)
        line = "(setsid sh -c 'echo from helper; sleep 1000' &) ; exit 0"
        b.keeper.start_ranks(0, [b.command(0, ["sh", "-c", line], terminal=(24, 80))])
        assert (await b.gone()).unkillable == ()
