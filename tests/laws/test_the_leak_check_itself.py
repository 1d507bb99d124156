"""The check of every test for what it leaves behind must see each kind, and must not see what it may not."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading

import grpc.aio
import pytest
from blockbuster import BlockingError
from support import leaks
from support.source import ROOTS

SLEEPER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]


@pytest.fixture
def mark():
    return os.environ[leaks.MARK]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch):
    monkeypatch.setattr(leaks, "SETTLE_S", 0.05)


def test_a_child_is_seen(mark):
    before = leaks.take(mark)
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        left = leaks.left_over(mark, before)
        child.kill()
    assert any(line.startswith(f"process {child.pid}: ") and "signal.pause" in line for line in left)
    assert not leaks.left_over(mark, before)


def test_a_child_that_nobody_waited_for_is_seen(mark):
    before = leaks.take(mark)
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert "nobody waited" in "".join(leaks.left_over(mark, before))
    child.wait()


def test_an_orphan_in_a_session_of_its_own_is_seen(mark):
    before = leaks.take(mark)
    parent = f"import subprocess as s; p = s.Popen({SLEEPER!r}, start_new_session=True, stdout=s.PIPE, "
    parent += "stderr=s.DEVNULL)\np.stdout.readline(); print(p.pid)"
    orphan = int(subprocess.run([sys.executable, "-c", parent], capture_output=True, check=True).stdout)
    ended = os.pidfd_open(orphan)
    try:
        left = leaks.left_over(mark, before)
    finally:
        signal.pidfd_send_signal(ended, signal.SIGKILL)
        select.select([ended], [], [])
        os.close(ended)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(orphan, 0)  # it comes to this process where another test made that a sub-reaper
    assert any(f"process {orphan}: " in line for line in left)


def test_a_descriptor_is_seen(mark):
    before = leaks.take(mark)
    with socket.socket() as sock:
        assert any(f"descriptor {sock.fileno()}: socket:" in line for line in leaks.left_over(mark, before))


def test_a_thread_is_seen(mark):
    before, leave = leaks.take(mark), threading.Event()
    thread = threading.Thread(target=leave.wait, name="forgotten")
    thread.start()
    left = leaks.left_over(mark, before)
    leave.set()
    thread.join()
    assert left == ["thread forgotten"]


def test_shared_memory_is_seen(mark, monkeypatch):
    monkeypatch.setattr(leaks, "_another_session_is_at_work", lambda: False)
    before = leaks.take(mark)
    path = leaks.SHARED_MEMORY / f"nvrx-test-{mark}"
    path.touch()
    left = leaks.left_over(mark, before)
    path.unlink()
    assert f"/dev/shm/{path.name}" in left


async def test_grpc_needs_no_exemption(mark):
    before = leaks.take(mark)
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
            await channel.unary_unary("/no/such")(b"")
    await server.stop(grace=None)
    del server, channel
    assert before.threads <= leaks.take(mark).threads  # the rest is seen by the check after this test


def test_a_task_that_outlives_its_test_fails_it():
    async def leaves_a_task():
        leaves_a_task.task = asyncio.ensure_future(asyncio.Event().wait())

    async def run():
        with pytest.raises(AssertionError, match="tasks outlived"):
            await leaks.without_leftover_tasks(leaves_a_task)()
        leaves_a_task.task.cancel()

    asyncio.run(run())


async def test_product_code_that_blocks_the_loop_is_seen():
    product: dict = {}
    exec(compile("import time\ndef block(): time.sleep(0)", str(ROOTS[0] / "imagined.py"), "exec"), product)
    with pytest.raises(BlockingError):
        product["block"]()
