"""The keeper by itself: how ranks end, what is reported of it, and that nothing outlives a round."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
from typing import TYPE_CHECKING

import anyio
import pytest
from blockbuster import blockbuster_ctx
from keeper_kit import Bench, alive, bench, death, marked, python

from nvrx_async.job.records import EndedBy
from nvrx_launcher.errors import KeeperStartError
from nvrx_launcher.keeper.linux import boottime_s
from nvrx_launcher.keeper_events import Fenced, KeeperLost, RankExited, RankStarted, StartRefused
from nvrx_launcher.keeper_link import PROGRAM, Keeper

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("line", "code", "signum", "by"),
    [
        ("exit 0", 0, None, EndedBy.ITSELF),
        ("exit 3", 3, None, EndedBy.ITSELF),
        ("kill -KILL $$", None, signal.SIGKILL, EndedBy.SOMEONE_ELSE),
        ("kill -TERM $$", None, signal.SIGTERM, EndedBy.SOMEONE_ELSE),
        ("kill -SEGV $$", None, signal.SIGSEGV, EndedBy.ITSELF),
        (python("import os; os.abort()"), None, signal.SIGABRT, EndedBy.ITSELF),
    ],
)
async def test_each_kind_of_end_is_told(
    tmp_path: Path, line: str, code: int | None, signum: int | None, by: EndedBy
) -> None:
    async with bench(tmp_path) as b:
        b.run(line)
        started, ended = await b.until(RankStarted), await b.until(RankExited)
        assert (ended.exit_code, ended.signal, ended.by) == (code, signum, by)
        assert ended.pid == started.pid
        assert ended.failure is None
        assert ended.ran_s < 20
        assert (await b.gone()).unkillable == ()


@pytest.mark.parametrize(
    ("changes", "number", "step"),
    [
        ({"argv": ("/nowhere/prog",)}, errno.ENOENT, "exec"),
        ({"argv": ("no-such-program",)}, errno.ENOENT, "exec"),
        ({"argv": ("/etc/passwd",)}, errno.EACCES, "exec"),
        ({"cwd": "/nowhere"}, errno.ENOENT, "folder"),
    ],
)
async def test_a_program_that_cannot_run_is_no_exit_127(
    tmp_path: Path, changes: dict[str, object], number: int, step: str
) -> None:
    async with bench(tmp_path) as b:
        b.keeper.good_until(boottime_s() + 60)
        b.keeper.start_ranks(0, [b.command(0, ["true"], **changes), b.command(1, ["sleep", "1000"])])
        ended = await b.until(RankExited)
        assert (ended.exit_code, ended.signal, ended.by) == (None, None, EndedBy.ITSELF)
        assert ended.failure is not None
        assert (ended.failure.errno, ended.failure.step) == (number, step)
        assert ended.failure.path in ("/nowhere", *changes.get("argv", ()))  # type: ignore[misc]
        b.keeper.stop(0, 0)
        await b.gone()


async def test_a_null_byte_in_the_environment_ends_only_that_rank(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.keeper.good_until(boottime_s() + 60)
        b.keeper.start_ranks(0, [b.command(0, ["true"], env={"A": "x\0y", "PATH": "/bin"})])
        assert (await b.until(RankExited)).exit_code == 127
        assert "null" in b.path(0, "stderr").read_text()
        await b.gone()


async def test_environment_folder_and_arguments_arrive_byte_for_byte(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        odd = os.fsdecode(b"caf\xe9 \xf0\x9f\x98\x80")
        b.keeper.good_until(boottime_s() + 60)
        env = {"PATH": os.environ["PATH"], "ODD": odd}
        b.keeper.start_ranks(
            0, [b.command(0, ["sh", "-c", 'printf %s "$ODD|$1|"; pwd; env', "sh", odd], env=env)]
        )
        await b.gone()
        said = b.path(0).read_bytes()
        assert said.startswith(os.fsencode(f"{odd}|{odd}|{tmp_path}\n"))
        assert b"NVRX_KEEPER" not in said


async def test_a_rank_reads_no_input_and_has_only_its_three_descriptors(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run(python("import os, sys; print(repr(sys.stdin.read()), sorted(os.listdir('/proc/self/fd')))"))
        await b.gone()
        # The fourth is that of the listing.
        assert b.path(0).read_text() == "'' ['0', '1', '2', '3']\n"


def ignored_here() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        status = file.read().split()
    return int(status[status.index("SigIgn:") + 1], 16)


async def test_a_rank_has_default_signals_and_its_own_session(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run(
            python(
                "import os; status = open('/proc/self/status').read().split();"
                "ignored = int(status[status.index('SigIgn:') + 1], 16) & ~0x1001000;"  # Python's own two
                "print(status[status.index('SigBlk:') + 1], ignored);"
                "print(os.getsid(0) == os.getpid())"
            )
        )
        await b.gone()
        # What was ignored when the tests were started (`nohup`, a shell's background job) stays so in ranks.
        inherited = ignored_here() & ~0x1001000 & ~(1 << signal.SIGTERM - 1)
        assert b.path(0).read_text() == f"0000000000000000 {inherited}\nTrue\n"


async def test_who_is_stopped_was_ended_by_us(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("exec sleep 1000", "trap 'exit 5' TERM; echo up; while :; do sleep 1; done")
        await b.wait_for_line("up", 1)
        b.keeper.stop(0, 15)
        await b.gone()
        ends = {end.local_rank: end for end in b.all(RankExited)}
        assert (ends[0].signal, ends[0].by) == (signal.SIGTERM, EndedBy.US)
        assert (ends[1].exit_code, ends[1].by) == (5, EndedBy.US)


async def test_who_ended_before_the_stop_was_not_ended_by_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        os.mkfifo(tmp_path / "go")
        b.run("echo up; read go < go; exit 3", "exec sleep 1000")
        pid = (await b.until(RankStarted)).pid
        await b.wait_for_line("up")
        os.kill(b.keeper.pid, signal.SIGSTOP)  # order and end reach it at once
        await anyio.to_thread.run_sync((tmp_path / "go").write_text, "\n")
        await death(pid)
        b.keeper.stop(0, 15)
        os.kill(b.keeper.pid, signal.SIGCONT)
        await b.gone()
        ends = {end.local_rank: (end.exit_code, end.by) for end in b.all(RankExited)}
        assert ends == {0: (3, EndedBy.ITSELF), 1: (None, EndedBy.US)}


async def test_a_stop_right_after_the_start_is_not_lost(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        for number in range(10):
            b.run("exec sleep 1000", "exec sleep 1000", round=number)
            b.keeper.stop(number, 1000)
            await b.gone()
        assert {end.signal for end in b.all(RankExited)} == {signal.SIGTERM}


async def test_who_survives_sigterm_is_killed_at_the_end_of_the_grace(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("trap : TERM; echo up; while :; do sleep 1; done", "echo up; exec sleep 1000")
        await b.wait_for_line("up", 0)
        before_s = boottime_s()
        b.keeper.stop(0, 0.5)
        await b.gone()
        assert 0.5 <= boottime_s() - before_s < 10
        ends = {end.local_rank: end for end in b.all(RankExited)}
        assert (ends[0].signal, ends[0].by) == (signal.SIGKILL, EndedBy.US)
        assert (ends[1].signal, ends[1].by) == (signal.SIGTERM, EndedBy.US)


async def test_who_ignores_sigterm_gets_no_grace(tmp_path: Path) -> None:
    # No shell: it blocks all signals while it forks, and who looks then cannot tell.
    code = "import signal; signal.signal(15, signal.SIG_IGN); print('up'); signal.pause()"
    async with bench(tmp_path) as b:
        b.run(python(code))
        await b.wait_for_line("up")
        b.keeper.stop(0, 1000)
        await b.gone()
        assert [(end.signal, end.by) for end in b.all(RankExited)] == [(signal.SIGKILL, EndedBy.US)]


async def test_a_repeated_stop_only_shortens_the_grace(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("trap : TERM; echo up; while :; do sleep 1; done")
        await b.wait_for_line("up")
        b.keeper.stop(0, 1000)
        b.keeper.stop(0, 0.3)
        b.keeper.stop(0, 1000)
        await b.gone()


async def test_a_signal_is_forwarded_and_only_that_signal_counts_as_ours(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run(
            "sleep 1000 & trap 'echo got' USR1; echo up; wait; kill -0 $! && echo helper lives; wait",
            "echo up; exec sleep 1000",
            "trap 'kill -SEGV $$' USR1; echo up; while :; do sleep 0.1; done",
            "trap 'trap - USR1; kill -USR1 $$' USR1; echo up; while :; do sleep 0.1; done",
        )
        for local_rank in range(4):
            await b.wait_for_line("up", local_rank)
        b.keeper.signal(0, signal.SIGUSR1)
        await b.wait_for_line("helper lives")
        assert "got" in b.path(0).read_text()
        while len(b.all(RankExited)) < 2:
            await b.until(RankExited)
        ends = {end.local_rank: (end.signal, end.by) for end in b.all(RankExited)}
        # Rank 1 never heard of the signal, which would have been its end: it lives.
        assert ends == {2: (signal.SIGSEGV, EndedBy.ITSELF), 3: (signal.SIGUSR1, EndedBy.US)}
        b.keeper.stop(0, 0)
        await b.gone()


async def test_helpers_of_an_ended_rank_live_until_all_ranks_have_ended(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("setsid sleep 1000 & echo $!", "exec sleep 1000")
        await b.until(RankExited)
        helper = int(b.path(0).read_text())
        assert alive(helper)
        b.keeper.signal(0, signal.SIGKILL)
        await b.gone()
        assert not alive(helper)


async def test_helpers_do_not_outlive_ranks_that_end_well(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        for number in range(3):
            b.run(
                "(setsid sh -c 'setsid sleep 1000' &) ; sleep 1000 & exit 0",
                "sleep 1000 & exit 0",
                round=number,
            )
            await b.gone()
            assert marked(b.tag) == [b.keeper.pid]


async def test_start_at_or_after_the_deadline_is_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.keeper.start_ranks(0, [b.command(0, ["true"])])
        assert (await b.until(StartRefused)).code == "fence"
        b.run("true", good_for_s=0)
        refused = await b.until(StartRefused)
        assert (refused.round, refused.code) == (0, "fence")
        assert not b.path(0).exists()
        b.run("exit 0")
        assert (await b.until(RankExited)).exit_code == 0


async def test_ranks_end_at_the_deadline_which_can_move_on_but_not_back(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        now_s = boottime_s()
        b.run("trap '' TERM; setsid sleep 1000 & echo up; wait", good_for_s=0.4)
        b.keeper.good_until(now_s + 0.8)
        b.keeper.good_until(now_s + 0.1)
        b.keeper._order("fence", good_until_s=now_s + 0.1)  # the keeper itself knows better, too
        fenced = await b.until(Fenced)
        assert fenced.round == 0
        await b.gone()
        assert 0.8 <= boottime_s() - now_s < 10
        (end,) = b.all(RankExited)
        assert (end.signal, end.by) == (signal.SIGKILL, EndedBy.US)
        b.run("exit 0", round=1)
        await b.gone()


async def test_a_promise_moves_the_deadline_of_its_round_and_of_no_other(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        now_s = boottime_s()
        b.run("exec sleep 1000", good_for_s=0.6)
        b.keeper.extend(1, now_s + 1000)
        b.keeper._order("fence", good_until_s=now_s + 1000, round=1)  # the keeper itself knows better, too
        b.keeper.extend(0, now_s + 1.0)
        b.keeper.extend(0, now_s + 0.1)
        assert (await b.until(Fenced)).round == 0
        await b.gone()
        assert 1.0 <= boottime_s() - now_s < 10, "later by the promise, not for ever by another round's"
        b.keeper.start_ranks(1, [b.command(0, ["true"])])
        assert (await b.until(StartRefused)).code == "fence", "a promise lets nothing start"


async def test_an_order_for_another_generation_is_refused(tmp_path: Path) -> None:
    async with bench(tmp_path, generation=4) as b:
        b.keeper.good_until(boottime_s() + 60)
        b.keeper.generation = 3
        b.keeper.start_ranks(0, [b.command(0, ["true"])])
        refused = await b.until(StartRefused)
        assert refused.code == "generation"
        assert "keeper 4" in refused.reason


async def test_a_round_starts_only_when_the_one_before_is_gone(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("exec sleep 1000")
        b.run("true", round=1)
        refused = await b.until(StartRefused)
        assert (refused.round, refused.code) == (1, "busy")
        b.keeper.stop(1, 0)  # another round: has no effect
        b.keeper.stop(0, 0)
        assert (await b.gone()).round == 0


async def test_a_process_that_sigkill_does_not_end_is_named_and_the_keeper_goes_on(tmp_path: Path) -> None:
    # A stand-in for a process in uninterruptible sleep: a keeper that cannot signal what runs `sleep 7777`.
    program = tmp_path / "keeper.py"
    program.write_text(
        "import os, runpy, signal, sys\n"
        "def spares(pid): return b'7777' in open(f'/proc/{pid}/cmdline', 'rb').read()\n"
        "killpg, to_pidfd = os.killpg, signal.pidfd_send_signal\n"
        "def pid_of(fd): return int(open(f'/proc/self/fdinfo/{fd}').read().split('Pid:')[1].split()[0])\n"
        "os.killpg = lambda pid, number: spares(pid) or killpg(pid, number)\n"
        "signal.pidfd_send_signal = lambda fd, number: spares(pid_of(fd)) or to_pidfd(fd, number)\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    async with bench(tmp_path, program=program, unkillable_after_s=0.5) as b:
        b.run("exec sleep 1000", "echo up; exec sleep 7777", "sleep 7777 & exit 0")
        await b.until(RankExited)
        await b.wait_for_line("up", 1)
        b.keeper.stop(0, 0)
        assert (await b.gone()).unkillable == (1, 2)
        b.run("true", round=1)
        assert (await b.until(StartRefused)).code == "busy"
        for pid in marked(b.tag):
            if pid != b.keeper.pid:
                os.kill(pid, signal.SIGKILL)
                await death(pid)
        b.run("true", round=2)
        await b.gone()


async def test_the_keeper_survives_signals_meant_for_the_agent(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        assert os.getsid(b.keeper.pid) == b.keeper.pid
        for number in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "TSTP", "PIPE"):
            os.kill(b.keeper.pid, signal.Signals[f"SIG{number}"])
        b.run("exit 0")
        assert (await b.until(RankExited)).exit_code == 0


async def test_no_descriptor_is_lost_over_many_rounds_and_the_keeper_stays_small(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        before = len(os.listdir(f"/proc/{b.keeper.pid}/fd"))
        for number in range(50):
            b.run("echo x", "exec sleep 1000", "nope-nope", round=number)
            await b.until(RankStarted)
            b.keeper.stop(number, 0)
            await b.gone()
        assert len(os.listdir(f"/proc/{b.keeper.pid}/fd")) == before
        with open(f"/proc/{b.keeper.pid}/status") as status:  # noqa: ASYNC230 - of the test
            resident_kb = next(int(line.split()[1]) for line in status if "VmRSS" in line)
        assert resident_kb < 16 << 10


async def test_a_keeper_that_cannot_start_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeeperStartError, match="/nowhere/python"):
        async with Keeper.start(1, "t/n/i", python="/nowhere/python"):
            pass
    silent = tmp_path / "silent.py"
    silent.write_text("import sys; sys.exit(7)")
    with pytest.raises(KeeperStartError, match="exited with 7"):
        async with Keeper.start(1, "t/n/i", program=silent):
            pass


async def test_the_end_of_the_context_kills_everything_also_when_its_body_fails(tmp_path: Path) -> None:
    benches: list[Bench] = []

    async def failing() -> None:
        async with bench(tmp_path) as b:
            benches.append(b)
            b.run("trap '' TERM; echo up; (setsid setsid sleep 1000 &); sleep 1000")
            await b.wait_for_line("up")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert marked(benches[0].tag) == []


async def test_a_rank_that_cannot_be_forked_is_told_and_costs_no_descriptor(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        before = len(os.listdir(f"/proc/{b.keeper.pid}/fd"))
        resource.prlimit(b.keeper.pid, resource.RLIMIT_NOFILE, (before + 3, before + 3))
        b.run("true")
        ended = await b.until(RankExited)
        assert ended.failure is not None
        assert (ended.failure.errno, ended.failure.step) == (errno.EMFILE, "fork")
        await b.gone()
        assert len(os.listdir(f"/proc/{b.keeper.pid}/fd")) == before


async def test_many_ranks_start_where_few_descriptors_are_usual_and_keep_that_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        async with bench(tmp_path) as b:
            b.run(*["ulimit -Sn"] * 24)
            await b.gone()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not [one.failure for one in b.all(RankExited) if one.failure]
    assert {b.path(number).read_text() for number in range(24)} == {"128\n"}


async def test_an_order_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.run("echo up; exec sleep 1000")
        b.run("echo up; exec sleep 1000")
        assert (await b.until(StartRefused)).code == "busy"
        assert b.keeper._overdue_at_s() < math.inf
        b.keeper.stop(0, 0)
        b.keeper.stop(0, 0)
        await b.gone()
        assert len(b.all(RankStarted)) == 1
        assert b.keeper._overdue_at_s() == math.inf


async def test_the_agents_loop_is_never_blocked(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        with blockbuster_ctx():
            async with Keeper.start(2, f"{b.tag}-2") as keeper:
                b.keeper, outer = keeper, b.keeper
                b.run("echo up; exec sleep 1000")
                await b.until(RankStarted)
                keeper.stop(0, 0)
                await b.gone()
                os.kill(keeper.pid, signal.SIGKILL)
                await b.until(KeeperLost)
            b.keeper = outer


async def test_cancelling_the_agent_ends_the_keeper_too(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with bench(tmp_path) as b:
            b.run("echo up; exec sleep 1000")
            await b.wait_for_line("up")
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert marked(b.tag) == []


async def test_a_rank_runs_on_its_cpus_and_one_that_cannot_says_so(tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    code = python("import os; print(sorted(os.sched_getaffinity(0)))")
    async with bench(tmp_path) as b:
        b.keeper.good_until(boottime_s() + 60)
        b.keeper.start_ranks(
            0,
            [
                b.command(0, ["sh", "-c", code], cpus=(one,)),
                b.command(1, ["true"], cpus=(100_000,)),
            ],
        )
        await b.gone()
        assert b.path(0).read_text() == f"[{one}]\n"
        (failed,) = [end for end in b.all(RankExited) if end.local_rank == 1]
        assert failed.failure is not None
        assert failed.failure.step == "cpus"
