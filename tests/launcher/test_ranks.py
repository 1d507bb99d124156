"""This node's ranks under a real keeper: each kind of end becomes the right evidence."""

from __future__ import annotations

import asyncio
import io
import os
import shlex
import signal
import socket
import sys
import threading
import uuid
from contextlib import asynccontextmanager

import anyio
import pytest
from keeper_kit import marked

from nvrx_async.job.records import Assignment, EndedBy, FaultKind, Node, Process, Seat
from nvrx_async.rounds.events import KeeperLost, KeeperReady, Proof, RankEnded, RanksGone
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.config import ProgramKind, WorkersConfig
from nvrx_launcher.countdown import Countdown
from nvrx_launcher.output import Output
from nvrx_launcher.rank_watch import RankWatch
from nvrx_launcher.ranks import NodeRanks
from nvrx_launcher.screen import Screen, call_in
from nvrx_launcher.warm import WarmCrew
from nvrx_launcher.workers import RankJob

PATIENCE_S = 20.0


class Console(io.BytesIO):
    """Wakes the bench at each write, which the screen's thread does."""

    def __init__(self, bench):
        super().__init__()
        self.bench, self.loop = bench, asyncio.get_running_loop()

    def write(self, data):
        written = super().write(data)
        call_in(self.loop, self.bench.wake)
        return written


class Bench:
    """Ranks of one node, and the events they tell."""

    def __init__(self, folder, screen, line, *, stop_timeout_s=5.0, startup_grace_s=0.0):
        self.folder, self.tag = folder, f"test/{uuid.uuid4().hex}"
        self.events, self.warnings, self.sentences, self.kept = [], [], [], []
        self.out, self.err = Console(self), io.BytesIO()
        self.more = anyio.Event()
        argv = ("sh", "-c", line)
        kind = ProgramKind.EXECUTABLE
        workers = WorkersConfig(argv, kind, "sh", "worker", stop_timeout_s, startup_grace_s)
        self.ranks = NodeRanks(
            workers=workers,
            tag=self.tag,
            base_env=os.environ,
            cwd=str(folder),
            output=Output(screen, self.out, self.err, boottime_s),
            warn=self.warnings.append,
            countdown=Countdown(self.warnings.append),
            watch=RankWatch(None, lease_ttl_s=6, warn=self.warnings.append, inherited={}),
            keep=lambda number, end: self.kept.append((number, end)),
            crew=WarmCrew(workers, os.environ, say=self.warnings.append, explain=self.sentences.append),
        )
        self.ranks.listen(self.tell)
        self.ranks.enter(RankJob("job", 0, "a", 3, folder, self.tag))

    def tell(self, event):
        self.events.append(event)
        self.wake()

    def wake(self):
        self.more.set()
        self.more = anyio.Event()

    async def until(self, kind, count=1):
        with anyio.fail_after(PATIENCE_S):
            while len(found := self.all(kind)) < count:
                await self.more.wait()
        return found[count - 1]

    def all(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    async def start(self, slots=1, number=0, *, good_for_s=60.0, generation=1):
        if good_for_s:
            self.ranks.good_until(boottime_s() + good_for_s)
        seat = Seat("a", "a-1", "host-a", 0, 0, slots)
        await self.ranks.start(Assignment(number, seat, slots, 1, "127.0.0.1", 29500), generation)

    async def gone(self, count=1):
        return await self.until(RanksGone, count)

    async def heard(self, words, times=1):
        """Ranks have written this, so often."""
        with anyio.fail_after(PATIENCE_S):
            while self.out.getvalue().count(words) < times:
                await self.more.wait()


@pytest.fixture
def screen():
    with Screen() as made:
        yield made


@pytest.fixture
def bench(tmp_path, screen):
    @asynccontextmanager
    async def made(line, **settings):
        one = Bench(tmp_path, screen, line, **settings)
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(PATIENCE_S):
                await tasks.start(one.ranks.serve)
            yield one
            tasks.cancel_scope.cancel()
        assert marked(one.tag) == []

    return made


def python(code):
    return f"exec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(code)}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("exit 0", {"kind": None, "exit_code": 0, "signal": None, "by": EndedBy.ITSELF}),
        ("echo oops >&2; exit 3", {"kind": FaultKind.EXIT_CODE, "exit_code": 3, "last_lines": ("oops",)}),
        (
            "kill -KILL $$",
            {
                "kind": FaultKind.SIGNAL,
                "signal": signal.SIGKILL,
                "exit_code": None,
                "by": EndedBy.SOMEONE_ELSE,
            },
        ),
        ("kill -SEGV $$", {"kind": FaultKind.SIGNAL, "signal": signal.SIGSEGV}),
        (python("raise ValueError('bad shard')"), {"kind": FaultKind.EXCEPTION, "exit_code": 1}),
    ],
)
async def test_each_end_becomes_evidence(bench, line, expected):
    async with bench(line) as one:
        await one.start()
        gone = await one.gone()
        (end,) = gone.ends
        for name, value in expected.items():
            if name != "by" or end.signal is None:
                assert getattr(end, name) == value, name
        assert one.all(RankEnded)[0].end.kind is end.kind
        assert one.events.index(one.all(RankEnded)[0]) < one.events.index(gone)
        assert (end.rank, end.local_rank, gone.round, gone.unkillable) == (0, 0, 0, ())
        assert end.pid > 0
        assert end.ready
        assert end.log.endswith("attempt_0/round_0/rank_0")
        if expected["kind"] is FaultKind.EXCEPTION:
            assert (end.error.type, end.error.message) == ("ValueError", "bad shard")


async def test_an_error_file_that_cannot_be_read_to_its_end_delays_no_report(bench):
    # A pipe that nobody writes to stands for a disk that does not answer.
    async with bench('mkfifo "$TORCHELASTIC_ERROR_FILE"; echo oops >&2; exit 3') as one:
        await one.start()
        (end,) = (await one.gone()).ends
        os.close(os.open(f"{end.log}/error.json", os.O_RDWR))  # the threads that wait for a writer may go
    assert (end.kind, end.last_lines) == (FaultKind.EXIT_CODE, ("oops",))


async def test_a_disk_that_makes_no_folders_costs_the_output_and_is_left_alone(bench, tmp_path, monkeypatch):
    """A FIFO that nobody reads stands for a file on that disk: who opens it waits."""
    answers = threading.Event()
    folder = tmp_path / "attempt_0" / "round_0" / "rank_0"

    def make_folders(_commands):
        folder.mkdir(parents=True)
        os.mkfifo(folder / "stdout.log")
        answers.wait()

    monkeypatch.setattr("nvrx_launcher.ranks.make_folders", make_folders)
    monkeypatch.setattr("nvrx_launcher.ranks.FOLDERS_LIMIT_S", 0.2)
    async with bench("echo up; exit 3") as one:
        await one.start()
        (end,) = (await one.gone()).ends
        answers.set()
    assert (end.kind, end.exit_code, end.log) == (FaultKind.EXIT_CODE, 3, str(folder))
    assert "output of round 0 is lost: its folders could not be made within 0.2 s" in one.warnings
    assert "round 0: 3 bytes of output are lost, the log could not be written" in one.warnings
    assert os.listdir(folder) == ["stdout.log"]


async def test_a_rank_that_ends_within_the_grace_was_not_ready(bench):
    async with bench("exit 1", startup_grace_s=60.0) as one:
        await one.start()
        assert not (await one.gone()).ends[0].ready


async def test_a_program_that_does_not_exist_is_a_failed_start_with_its_path(bench):
    async with bench("unused") as one:
        one.ranks._workers = WorkersConfig(
            ("/no/such/program",), ProgramKind.EXECUTABLE, "x", "worker", 5.0, 0.0
        )
        await one.start()
        (end,) = (await one.gone()).ends
        assert end.kind is FaultKind.START_FAILED
        assert "No such file or directory: /no/such/program" in end.detail
        assert (end.exit_code, end.signal) == (None, None)


async def test_stopped_ranks_are_no_fault_and_a_kill_does_not_ask(bench):
    async with bench("trap '' TERM; echo up; while :; do sleep 1000; done") as one:
        await one.start(slots=2)
        await one.heard(b"up", times=2)
        one.ranks.stop(0, grace=True)
        one.ranks.kill()
        gone = await one.gone()
        assert [end.kind for end in gone.ends] == [FaultKind.STOPPED_BY_US] * 2
        assert {end.by for end in gone.ends} == {EndedBy.US}


async def test_a_graceful_stop_is_a_sigterm(bench):
    async with bench("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done") as one:
        await one.start()
        await one.heard(b"up")
        one.ranks.stop(0, grace=True)
        await one.gone()
        assert b"bye" in one.out.getvalue()


async def test_signals_are_forwarded(bench):
    async with bench("trap 'echo got; exit 0' USR1; echo up; while :; do sleep 0.05; done") as one:
        one.ranks.signal(signal.SIGUSR1)
        await one.start()
        await one.heard(b"up")
        one.ranks.signal(signal.SIGUSR1)
        assert (await one.gone()).ends[0].kind is None


async def test_the_first_fault_is_told_while_others_run(bench):
    async with bench('[ "$LOCAL_RANK" = 1 ] && exit 7; exec sleep 1000') as one:
        await one.start(slots=2)
        ended = await one.until(RankEnded)
        assert (ended.end.rank, ended.end.exit_code) == (1, 7)
        assert not one.all(RanksGone)
        one.ranks.stop(0, grace=False)
        gone = await one.gone()
        assert [end.kind for end in gone.ends] == [FaultKind.STOPPED_BY_US, FaultKind.EXIT_CODE]


async def test_rounds_follow_each_other_each_with_its_logs(bench):
    async with bench("echo round $TORCHELASTIC_RESTART_COUNT") as one:
        for number in range(3):
            await one.start(number=number)
            assert (await one.gone(number + 1)).round == number
            log = one.folder / "attempt_0" / f"round_{number}" / "rank_0" / "stdout.log"
            assert log.read_text() == f"round {number}\n"
        assert one.out.getvalue() == b"round 0\nround 1\nround 2\n"


# The deadline ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("good_for_s", [0.0, -1.0], ids=["never renewed", "passed"])
async def test_nothing_starts_at_or_after_the_deadline(bench, good_for_s):
    async with bench("exec sleep 1000") as one:
        await one.start(slots=2, good_for_s=good_for_s)
        gone = await one.gone()
        assert [end.kind for end in gone.ends] == [FaultKind.FENCED] * 2
        assert "ranks may not start" in gone.ends[0].detail
        assert not one.all(RankEnded)


async def test_ranks_whose_deadline_passes_are_killed_and_told_as_fenced(bench):
    async with bench("exec sleep 1000") as one:
        await one.start(good_for_s=0.5)
        (end,) = (await one.gone()).ends
        assert (end.kind, end.signal) == (FaultKind.FENCED, signal.SIGKILL)
        assert any("not renewed in time" in warning for warning in one.warnings)


# The keeper ------------------------------------------------------------------------------------------------


async def test_a_lost_keeper_is_told_then_its_ranks_are_gone_then_a_new_one_is_ready(bench):
    async with bench("echo up; exec sleep 1000") as one:
        await one.start(slots=2)
        await one.heard(b"up", times=2)
        os.kill(one.ranks._keeper.pid, signal.SIGKILL)
        await one.until(KeeperReady, 2)
        order = [event for event in one.events if isinstance(event, KeeperReady | KeeperLost | RanksGone)]
        assert [type(event) for event in order] == [KeeperReady, KeeperLost, RanksGone, KeeperReady]
        assert [order[0].generation, order[1].generation, order[3].generation] == [1, 1, 2]
        assert [end.kind for end in order[2].ends] == [FaultKind.STOPPED_BY_US] * 2
        assert order[2].unkillable == ()
        assert any("the keeper is lost" in warning for warning in one.warnings)
        await one.start(number=1, generation=2)
        one.ranks.stop(1, grace=False)
        assert (await one.gone(2)).round == 1


async def test_an_order_for_a_keeper_that_is_gone_starts_nothing(bench):
    async with bench("exec sleep 1000") as one:
        await one.start(generation=7)
        assert (await one.gone()).ends[0].kind is FaultKind.KEEPER_LOST
        assert not one.all(RankEnded)


async def test_an_environment_that_no_order_can_carry_is_a_failed_start(bench, monkeypatch):
    async with bench("exit 0") as one:
        monkeypatch.setattr(one.ranks, "_base_env", {f"LARGE_{i}": "x" * 100_000 for i in range(200)})
        await one.start()
        (end,) = (await one.gone()).ends
    assert end.kind is FaultKind.START_FAILED
    assert "the environment of the ranks is too large" in end.detail


async def test_a_stop_that_overtakes_the_start_wins(bench):
    async with bench("exec sleep 1000") as one:
        one.ranks.stop(0, grace=True)
        await one.start()
        assert (await one.gone()).ends[0].kind is FaultKind.STOPPED_BY_US
        assert not one.all(RankEnded)


async def test_another_life_is_told_of_the_keeper_that_is_ready(bench):
    async with bench("exit 0") as one:
        told = []
        one.ranks.listen(told.append)
        assert told == [KeeperReady(1)]


async def test_ranks_cannot_start_outside_of_a_job(bench):
    async with bench("exit 0") as one:
        one.ranks._job = None
        with pytest.raises(RuntimeError, match="before the agent has entered"):
            await one.start()


async def test_output_that_cannot_be_written_is_warned_of_and_the_rank_goes_on(bench):
    async with bench("echo lost; exit 5") as one:
        (one.folder / "attempt_0").write_text("a file where a folder should be")
        await one.start()
        (end,) = (await one.gone()).ends
        assert (end.kind, end.exit_code, end.last_lines) == (FaultKind.EXIT_CODE, 5, ())
        assert any("output of round 0 is lost" in warning for warning in one.warnings)
        assert any("cannot be written" in warning for warning in one.warnings)


# Ports and proofs ------------------------------------------------------------------------------------------


def can_listen(port, *, reuse):
    with socket.socket() as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
        return True


async def test_a_rounds_port_is_held_until_the_round_after_the_next(bench):
    async with bench("exit 0") as one:
        first = (await one.ranks.reserve_port(0)).port
        assert (await one.ranks.reserve_port(0)).port == first, "asked again"
        assert can_listen(first, reuse=True), "the store of rank 0 listens on it meanwhile"
        assert not can_listen(first, reuse=False)
        second = (await one.ranks.reserve_port(1)).port
        assert second != first
        assert not can_listen(first, reuse=False), "round 0 may still run"
        await one.ranks.reserve_port(2)
        assert can_listen(first, reuse=False)
        assert not can_listen(second, reuse=False)


async def test_a_proof_names_the_incarnation_it_is_about(bench):
    async with bench("exit 0") as one:
        elsewhere = Process("another boot", "pid:[1]", 1, 1, "tag")
        proven = await one.ranks.prove(Node("a", "a-0", "h", "addr", 1, elsewhere, "t"))
        assert proven.incarnation == "a-0"
        assert proven.proof in (Proof.UNKNOWN, Proof.DEAD)
        assert proven.evidence
