"""The rank's side: what lands on the page, and that nothing it does can hurt the training."""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.source import REPOSITORY

import nvrx_async
from nvrx_async.ranklink import frames
from nvrx_async.ranklink.messages import (
    PAGE_VARIABLE,
    SOCKET_VARIABLE,
    STACKS_VARIABLE,
    StepReached,
    from_wire,
)
from nvrx_async.ranklink.page import H_SIGNAL, H_STOP, H_TELL, SIZE_BYTES, STOP_HOLD, Page, PageView


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page that `connect` finds; no agent listens."""
    page = Page.create(5, 3)
    monkeypatch.setenv(PAGE_VARIABLE, page.path)
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "nobody.sock"))
    monkeypatch.delenv(STACKS_VARIABLE, raising=False)
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("NVRX_ROUND", "5")):
        monkeypatch.setenv(name, value)
    yield page
    page.close()


def seen(page: Page) -> PageView:
    return page.view(time.monotonic_ns())


def test_hello_place_and_end(page):
    assert not seen(page).is_ready
    with nvrx_async.connect() as rank:
        assert (rank.rank, rank.world_size, rank.round) == (3, 8, 5)
        view = seen(page)
        assert view.pid == os.getpid()
        assert view.is_ready
        assert view.done_s is None
        assert view.principal is None
    assert seen(page).done_s is not None


def test_who_connects_while_connected_shares_the_rank(page):
    with nvrx_async.connect() as rank:
        rank.progress(step=7)
        with rank.section("step"):
            with nvrx_async.connect() as library, library.section("save"):
                assert {one.name for one in seen(page).sections} == {"step", "save"}
            assert library is rank
            assert seen(page).done_s is None
            assert [one.name for one in seen(page).sections] == ["step"]
        rank.progress(step=8)
        assert seen(page).principal.step == 8
    assert seen(page).done_s is not None
    with nvrx_async.connect() as again:
        assert again is not rank
        assert seen(page).done_s is None


def test_who_connects_anew_has_said_hello_once(page):
    """As in each epoch: how long a start took is told from the first."""
    with nvrx_async.connect() as rank:
        rank.progress(step=0)
    first = seen(page)
    with nvrx_async.connect() as rank:
        rank.progress(step=1)
        assert seen(page).hello_s == first.hello_s < first.first_step_s


def test_connecting_again_and_again_takes_one_descriptor(page, tmp_path):
    program = """
import os, nvrx_async
counts = []
for _ in range(4):
    with nvrx_async.connect() as rank:
        assert rank.connected
    counts.append(len(os.listdir("/proc/self/fd")))
assert len(set(counts)) == 1, counts
"""
    environment = {**os.environ, STACKS_VARIABLE: str(tmp_path / "stacks.txt")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    assert seen(page).stacks_signal


def test_another_thread_trains_on_when_the_one_that_trained_has_ended(page):
    kept = threading.Event()
    with nvrx_async.connect() as rank:
        for step in (1, 2):
            trains = threading.Thread(target=rank.progress, kwargs={"step": step})
            trains.start()
            trains.join()
            threading.Thread(target=kept.wait).start()  # takes the place of the one that ended
            assert seen(page).principal.step == step
        kept.set()


def test_heartbeats_and_steps_of_the_training_thread(page):
    with nvrx_async.connect() as rank:
        rank.heartbeat()
        rank.progress(step=41)
        principal = seen(page).principal
        assert principal is not None
        assert principal.reports == 2
        assert principal.step == 41
        assert time.monotonic() - principal.last_s < 5


def test_the_first_gap_is_not_what_limits_are_learned_from(page):
    with nvrx_async.connect() as rank:
        rank.heartbeat()
        time.sleep(0.05)
        rank.heartbeat()
        rank.heartbeat()
        assert seen(page).principal.gap_s < 0.04
        time.sleep(0.05)
        rank.heartbeat()
        assert seen(page).principal.gap_s >= 0.05


def test_sections_inside_each_other_each_have_their_own_time(page):
    with nvrx_async.connect() as rank, rank.section("step"):
        time.sleep(0.02)
        with rank.section("save", limit_s=7.5):
            time.sleep(0.03)
            outer, inner = sorted(seen(page).sections, key=lambda one: one.start_s)
            assert (outer.name, outer.runs, outer.limit_s) == ("step", False, None)
            assert (inner.name, inner.runs, inner.limit_s) == ("save", True, 7.5)
            assert 0.02 <= outer.own_s < 0.045
            assert inner.own_s >= 0.03
        (outer,) = seen(page).sections
        assert outer.runs
    view = seen(page)
    assert not view.sections
    assert {(one.name, one.seen) for one in view.names} == {("step", 1), ("save", 1)}


def test_time_in_sections_is_no_gap_between_reports(page):
    with nvrx_async.connect() as rank:
        for _ in range(3):
            rank.heartbeat()
        with rank.section("save"):
            time.sleep(0.05)
        rank.heartbeat()
        assert seen(page).principal.gap_s < 0.04


async def test_overlapping_sections_of_tasks(page):
    async with nvrx_async.connect() as rank:
        entered = asyncio.Event()

        async def other() -> None:
            with rank.section("load"):
                entered.set()
                await asyncio.sleep(0.02)

        task = asyncio.create_task(other())
        with rank.section("step"):
            await entered.wait()
            assert {(one.name, one.runs) for one in seen(page).sections} == {("step", True), ("load", True)}
            await task
        assert not seen(page).sections


async def test_steps_report_beat_and_are_sections(page):
    async with nvrx_async.connect() as rank:
        found = []
        async for step in rank.steps(7, start=4):
            found.append(step)
            (section,) = seen(page).sections
            assert section.name == "step"
            assert seen(page).step == step
        assert found == [4, 5, 6]
        assert not seen(page).sections


def raise_in(steps: Iterable[int]) -> None:
    for _ in steps:
        raise ValueError("training")


def test_a_loop_that_is_left_early_leaves_no_open_step(page):
    with nvrx_async.connect() as rank:
        for step in rank.steps(10):
            if step == 3:
                break
        assert not seen(page).sections
        with pytest.raises(ValueError, match="training"):
            raise_in(rank.steps(10))
        assert not seen(page).sections


def test_a_side_thread_speaks_for_itself(page):
    with nvrx_async.connect() as rank:
        rank.progress(step=1)
        before = seen(page).principal
        thread = threading.Thread(target=rank.heartbeat)
        thread.start()
        thread.join()
        view = seen(page)
        assert view.principal == before
        assert len(view.threads) == 2


def test_the_thread_that_trains_is_the_one_that_reports_steps(page):
    with nvrx_async.connect() as rank:
        thread = threading.Thread(target=lambda: rank.progress(step=9))
        thread.start()
        thread.join()
        assert seen(page).principal.step == 9


def test_a_forked_child_never_speaks_for_its_parent(page):
    with nvrx_async.connect() as rank:
        rank.progress(step=1)
        before = seen(page)
        pid = os.fork()
        if pid == 0:
            try:
                rank.progress(step=99)
                with rank.section("child"):
                    pass
                rank.done()
                os._exit(0 if not rank.should_stop(100) and not rank.connected else 2)
            finally:
                os._exit(3)
        assert os.waitpid(pid, 0)[1] == 0
        after = seen(page)
        assert (after.threads, after.names, after.done_s) == (before.threads, before.names, None)
        rank.progress(step=2)
        assert seen(page).step == 2


def test_a_child_forked_inside_a_section_does_not_stop_its_clock(page):
    """A data loader's worker that is made in a step and has sections of its own."""
    with nvrx_async.connect() as rank, rank.section("step"):
        pid = os.fork()
        if pid == 0:
            try:
                rank.section("child").__enter__()
                os._exit(0)
            finally:
                os._exit(3)
        assert os.waitpid(pid, 0)[1] == 0
        (step,) = seen(page).sections
        assert step.runs


CHILD = """
import nvrx_async
with nvrx_async.connect() as rank:
    rank.progress(step=99)
    print(rank.connected)
"""


def test_a_spawned_helper_is_not_the_rank_while_the_rank_lives(page):
    with nvrx_async.connect() as rank:
        rank.progress(step=1)
        said = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
        assert said.stdout.strip() == "False"
        assert seen(page).step == 1


def test_a_wrapper_may_start_the_rank(page):
    said = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True"
    assert seen(page).step == 99


def test_outside_of_the_launcher_everything_is_a_no_op_that_says_so_once():
    program = """
import nvrx_async
for _ in range(2):
    with nvrx_async.connect() as rank:
        for step in rank.steps(3):
            with rank.section("save"):
                rank.heartbeat()
            assert not rank.should_stop(step)
        rank.ready()
        rank.done()
        print(rank.rank, rank.world_size, rank.round, rank.connected)
"""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("NVRX_") or "TEST" in name
    }
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
    )
    assert said.stdout.splitlines() == ["0 1 0 False"] * 2
    assert said.stderr.count("not started by nvrx-launch") == 1


def test_importing_the_package_loads_nothing_else():
    program = "import sys; before = set(sys.modules); import nvrx_async; print(*(set(sys.modules) - before))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(said.stdout.split()) <= {"nvrx_async", "__future__"}


def test_connecting_loads_neither_asyncio_nor_grpc(page):
    program = "import sys, nvrx_async\nwith nvrx_async.connect(): print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"asyncio", "anyio", "grpc", "aetcd", "nvrx_async.etcd", "nvrx_launcher"} & set(
        said.stdout.split()
    )


def test_a_page_of_another_version_is_told_and_left_alone(page, tmp_path, monkeypatch, capsys):
    (tmp_path / "odd.page").write_bytes(bytes(SIZE_BYTES))
    monkeypatch.setenv(PAGE_VARIABLE, str(tmp_path / "odd.page"))
    with nvrx_async.connect() as rank:
        rank.heartbeat()
        assert not rank.connected
    assert "another" in capsys.readouterr().err or not rank.connected


def test_reports_after_the_end_go_nowhere(page):
    with nvrx_async.connect() as rank:
        rank.progress(step=1)
    rank.progress(step=2)
    assert seen(page).step == 1


def test_a_step_that_is_waited_for_is_told_once(page, tmp_path):
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "nobody.sock"))
        agent.listen()
        with nvrx_async.connect() as rank:
            connection, _ = agent.accept()
            connection.settimeout(20)
            page.words[H_TELL] = 8
            for step in range(6, 12):
                rank.progress(step=step)
            page.words[H_TELL] = 31
            assert not rank.should_stop(30), "progress counts where it is told"
            rank.progress(step=30)
        with connection:
            heard = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    told = [from_wire(raw) for raw in frames.Decoder().feed(heard)]
    assert told[1:] == [StepReached(5, 3, 7), StepReached(5, 3, 30)]


def test_should_stop_tells_the_agreed_step(page):
    with nvrx_async.connect() as rank:
        assert not rank.should_stop(10)
        assert seen(page).asked_step == 10
        page.words[H_STOP] = 12 + 1
        assert not rank.should_stop(11)
        assert rank.should_stop(12)
        assert rank.should_stop(13)


@pytest.mark.parametrize(
    ("stop_at", "finished"),
    [(4, False), (9, True), (12, True)],
    ids=["in the middle", "at the last step", "beyond the last step"],
)
def test_who_is_told_to_stop_before_the_last_step_has_not_finished(page, stop_at, finished):
    page.words[H_STOP] = stop_at + 1
    with nvrx_async.connect() as rank:
        for step in rank.steps(10):
            for _ in rank.steps(2):  # an evaluation of its own
                pass
            rank.progress(step=step)
            if rank.should_stop(step):
                break
    assert seen(page).finished is finished


def test_a_hold_without_an_agent_to_ask_does_not_wait(page):
    with nvrx_async.connect() as rank:
        page.words[H_STOP] = STOP_HOLD
        begun = time.monotonic()
        assert not rank.should_stop(10)
        assert time.monotonic() - begun < 5


def test_more_threads_names_and_sections_than_there_are_places(page):
    with nvrx_async.connect() as rank:
        barrier = threading.Barrier(41)

        def work(number: int) -> None:
            barrier.wait()
            with rank.section(f"section {number}"), rank.section("inner"):
                rank.heartbeat()
            barrier.wait()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        barrier.wait()
        barrier.wait()
        for thread in threads:
            thread.join()
        assert not seen(page).sections
        assert len(seen(page).names) <= 32


def test_a_thread_that_is_not_the_main_one_connects_and_offers_stacks(page, tmp_path):
    path = tmp_path / "stacks.txt"
    script = (
        "import os, signal, threading, time, nvrx_async\n"
        "def train():\n"
        "    with nvrx_async.connect() as rank: rank.progress(step=4)\n"
        "thread = threading.Thread(target=train); thread.start(); thread.join()\n"
        f"import mmap; words = memoryview(mmap.mmap(os.open({page.path!r}, os.O_RDWR), 0)).cast('q')\n"
        f"os.kill(os.getpid(), words[{H_SIGNAL}])\n"
    )
    environment = {**os.environ, STACKS_VARIABLE: str(path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)
    assert "most recent call first" in path.read_text()
    assert seen(page).step == 4


def test_stacks_are_written_on_the_signal(page, tmp_path, monkeypatch):
    monkeypatch.setenv(STACKS_VARIABLE, str(tmp_path / "stacks.txt"))
    program = """
import nvrx_async, os, time
with nvrx_async.connect():
    def stuck_here():
        print("ready", flush=True)
        time.sleep(60)
    stuck_here()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        view = seen(page)
        os.kill(child.pid, view.stacks_signal)
        end = time.monotonic() + 10
        text = ""
        while "stuck_here" not in text and time.monotonic() < end:
            text = (tmp_path / "stacks.txt").read_text()
        child.kill()
    assert "stuck_here" in text
    assert f"0x{view.main_ident:016x}" in text


def test_a_rank_that_is_ending_does_not_die_of_being_asked_for_its_stacks(page, tmp_path, monkeypatch):
    """The interpreter hands the signal back when it ends, as `unregister` does; torch may take long after that."""
    monkeypatch.setenv(STACKS_VARIABLE, str(tmp_path / "stacks.txt"))
    program = """
import faulthandler, nvrx_async, os, signal, subprocess
with nvrx_async.connect():
    asked = [n for n in range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if signal.getsignal(n) != signal.SIG_DFL]
    shell = subprocess.run("grep SigIgn /proc/self/status", shell=True, capture_output=True, text=True)
    assert int(shell.stdout.split()[1], 16) >> (asked[0] - 1) & 1 == 0, "nothing is inherited"
assert len(asked) == 1
faulthandler.unregister(asked[0])
os.kill(os.getpid(), asked[0])
print("lives", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


def test_who_connects_again_begins_with_nothing_open_and_each_name_keeps_its_own_limit(page):
    with nvrx_async.connect() as rank:
        left = rank.steps(3)
        next(left)
        with rank.section("save", limit_s=5.0):
            pass
    with nvrx_async.connect() as rank:
        rank.heartbeat()
        view = seen(page)
        assert view.sections == ()
        assert view.principal.open_sections == 0
        with rank.section("evaluate"), rank.section("save"):
            limits = {one.name: one.limit_s for one in seen(page).sections}
        assert limits == {"evaluate": None, "save": 5.0}
        next(left)  # the iterator of the first connection reports to nobody
        assert seen(page).sections == ()
    counts = {one.name: one.seen for one in seen(page).names}
    assert counts == {"step": 0, "save": 2, "evaluate": 1}


def test_the_first_two_steps_are_kept_on_the_page(page):
    """What traces say of a rank's start: the agent reads it there, and the rank does nothing for it."""
    with nvrx_async.connect() as rank:
        rank.heartbeat()
        assert (seen(page).first_step_s, seen(page).second_step_s) == (None, None)
        rank.progress(step=7)
        first_s = seen(page).first_step_s
        assert first_s is not None
        assert seen(page).second_step_s is None
        rank.progress(step=8)
        second_s = seen(page).second_step_s
        assert second_s is not None
        assert second_s >= first_s
        rank.progress(step=9)
        assert (seen(page).first_step_s, seen(page).second_step_s) == (first_s, second_s)


def test_a_rank_loads_nothing_for_the_trace_of_its_start(page):
    code = """
import sys, nvrx_async
with nvrx_async.connect() as rank:
    for _ in rank.steps(3):
        pass
print([name for name in sys.modules if "nvrx_telemetry" in name or "opentelemetry" in name])
"""
    environment = {**os.environ, "NVRX_SPANS": "/dev/null", "NVRX_SPANS_EPOCH_NS": "1"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert told.stdout.split() == [b"[]"]
    assert seen(page).second_step_s is not None


def test_nobody_touches_a_ranks_dict() -> None:
    """CPython reads attributes of an object more slowly once its `__dict__` was asked for: 10 % of a beat."""
    sources = list((REPOSITORY / "nvrx_async" / "ranklink").glob("rank*.py"))
    assert len(sources) > 3
    for source in sources:
        code = ast.parse(source.read_text(encoding="utf-8"))
        asked = [
            node for node in ast.walk(code) if isinstance(node, ast.Attribute) and node.attr == "__dict__"
        ]
        calls = [
            node for node in ast.walk(code) if isinstance(node, ast.Name) and node.id in ("vars", "setattr")
        ]
        assert not [*asked, *calls], source
