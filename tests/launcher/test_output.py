"""Output of this node's ranks on the console, from their logs."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable

import anyio
import pytest

from nvrx_async.job.records import Assignment, Seat
from nvrx_launcher import output as module
from nvrx_launcher.output import Output
from nvrx_launcher.screen import Screen
from nvrx_launcher.workers import RankCommand


class FakeKeeper:
    """Notes which logs were seen; `told` waits for that."""

    def __init__(self):
        self.seen_logs = []
        self._more = anyio.Event()

    def seen(self, local_rank, stream):
        self.seen_logs.append((local_rank, stream))
        self._more.set()
        self._more = anyio.Event()

    async def told(self, count):
        with anyio.fail_after(20):
            while len(self.seen_logs) < count:
                await self._more.wait()


class Stage:
    def __init__(self, folder, screen, slots=2, nodes=1):
        self.folder, self.slots, self.nodes = folder, slots, nodes
        self.out, self.err = io.BytesIO(), io.BytesIO()
        self.keeper = FakeKeeper()
        self.screen = screen
        self.output = Output(self.screen, self.out, self.err, time.monotonic)

    def path(self, number, local_rank, stream):
        return self.folder / f"{number}.{local_rank}.{stream}"

    def expect(self, number=0):
        seat = Seat("a", "a-1", "host-a", 1 if self.nodes > 1 else 0, 2 if self.nodes > 1 else 0, self.slots)
        assignment = Assignment(number, seat, self.slots * self.nodes, self.nodes, "addr", 1)
        commands = [
            RankCommand(
                n, ("x",), {}, "/", str(self.path(number, n, "stdout")), str(self.path(number, n, "stderr"))
            )
            for n in range(self.slots)
        ]
        self.output.expect(assignment, commands)

    def write(self, text, number=0, local_rank=0, stream="stdout"):
        with self.path(number, local_rank, stream).open("ab") as log:
            log.write(text)


@pytest.fixture
def screen():
    """Opened and closed beside the loop, as the agent does it."""
    with Screen() as made:
        yield made


@pytest.fixture
def stage(tmp_path, screen):
    return Stage(tmp_path, screen)


async def test_what_grew_is_shown_with_its_rank_and_acknowledged(stage):
    stage.expect()
    stage.write(b"hello\n")
    stage.write(b"careful\n", local_rank=1, stream="stderr")
    stage.output.grew(0, "stdout", stage.keeper)
    stage.output.grew(1, "stderr", stage.keeper)
    await stage.keeper.told(2)
    assert stage.keeper.seen_logs == [(0, "stdout"), (1, "stderr")]
    assert stage.out.getvalue() == b"[rank 0] hello\n"
    assert stage.err.getvalue() == b"[rank 1] careful\n"


async def test_nothing_is_lost_or_repeated_over_growths_and_rounds(stage):
    expected = []
    for number in range(3):
        stage.expect(number)
        for step in range(5):
            for rank in range(2):
                stage.write(b"round %d step %d\n" % (number, step), number, rank)
                expected.append(b"[rank %d] round %d step %d" % (rank, number, step))
                stage.output.grew(rank, "stdout", stage.keeper)
        stage.write(b"last words of %d" % number, number, 0)
        expected.append(b"[rank 0] last words of %d" % number)
        await stage.output.drain()
    assert sorted(stage.out.getvalue().splitlines()) == sorted(expected)
    stage.output.grew(0, "stdout", stage.keeper)
    await stage.keeper.told(31)
    assert len(stage.out.getvalue().splitlines()) == len(expected), "growth of a round that is over"


async def test_drain_shows_what_no_growth_told_of(stage):
    stage.expect()
    stage.write(b"unannounced")
    await stage.output.drain()
    assert stage.out.getvalue() == b"[rank 0] unannounced\n"


async def test_the_host_is_named_where_there_are_several_nodes(tmp_path, screen):
    stage = Stage(tmp_path, screen, nodes=2)
    stage.expect()
    stage.write(b"hello\n")
    await stage.output.drain()
    assert stage.out.getvalue() == b"[rank 2 host-a] hello\n"


async def test_a_log_that_does_not_exist_is_passed_over_and_acknowledged(stage):
    stage.expect()
    stage.output.grew(0, "stdout", stage.keeper)
    await stage.keeper.told(1)
    await stage.output.drain()
    assert stage.out.getvalue() == b""


async def test_before_any_round_nothing_happens(stage):
    stage.output.grew(0, "stdout", stage.keeper)
    await stage.keeper.told(1)
    await stage.output.drain()


class Console(io.BytesIO):
    """Does something at each write."""

    def __init__(self, at_write: Callable[[], None]):
        super().__init__()
        self.at_write = at_write

    def write(self, data):
        self.at_write()
        return super().write(data)


async def test_a_stuck_console_bounds_the_end_of_a_round_and_loses_nothing(tmp_path, screen, monkeypatch):
    monkeypatch.setattr(module, "DRAIN_LIMIT_S", 0.05)
    free = threading.Event()
    stage = Stage(tmp_path, screen)
    stage.output._out = console = Console(lambda: free.wait(20))
    for number in range(2):
        stage.expect(number)
        stage.write(b"round %d\n" % number, number)
        with anyio.fail_after(10):
            await stage.output.drain()
    assert console.getvalue() == b""
    free.set()
    await stage.screen.drain(20)
    assert console.getvalue() == b"[rank 0] round 0\n[rank 0] round 1\n"


async def test_a_rank_that_never_stops_writing_leaves_the_screen_to_the_others(tmp_path, screen):
    stage = Stage(tmp_path, screen)
    stage.output._out = console = Console(lambda: stage.write(b"more\n"))
    stage.expect()
    stage.write(b"first\n")
    stage.output.grew(0, "stdout", stage.keeper)
    await stage.keeper.told(1)
    stage.output.grew(1, "stdout", stage.keeper)
    await stage.keeper.told(2)
    console.at_write = lambda: None
    await stage.output.drain()
    assert console.getvalue() == b"[rank 0] first\n[rank 0] more\n"


async def test_the_only_rank_is_passed_through_and_others_begin_at_the_left(tmp_path, screen):
    stage = Stage(tmp_path, screen, slots=1)
    stage.expect()
    stage.write(b"50%")
    stage.output.grew(0, "stdout", stage.keeper)
    await stage.keeper.told(1)
    stage.screen.do(stage.output.break_line)
    await stage.screen.drain(20)
    assert stage.out.getvalue() == b"50%\n"
