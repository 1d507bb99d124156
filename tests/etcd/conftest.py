"""Fixtures: one etcd for the session, a prefix and a client per test, and a server a test may hurt."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from blockbuster import BlockBuster, blockbuster_ctx
from support.etcd_server import DEFAULT_TIMES, EtcdProcess, etcd_process

from nvrx_async.etcd import EtcdClient, EtcdConfig
from nvrx_async.etcd.wire import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# Holds gRPC's one poller for all tests: else it comes and goes with the channels, its socket pair too.
grpc.aio.init_grpc_aio()


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdProcess]:
    """Not to be stopped, compacted or given users: many tests use it."""
    with etcd_process(flags=DEFAULT_TIMES) as server:
        yield server


@pytest.fixture(scope="session")
def hurt_etcd() -> Iterator[EtcdProcess]:
    with etcd_process() as server:
        yield server


@pytest.fixture
def etcd(hurt_etcd: EtcdProcess) -> EtcdProcess:
    """A server that the test may freeze, kill, wipe or compact; whole again for each test."""
    hurt_etcd.make_whole()
    return hurt_etcd


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/test/{request.node.name}/"


@pytest_asyncio.fixture
async def client(shared_etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdConfig((shared_etcd.endpoint,))) as client:
        yield client


@pytest_asyncio.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """No task, descriptor or child process outlives a test."""
    tasks, descriptors = asyncio.all_tasks(), _descriptors()
    yield
    # grpc.aio ends its calls and sockets on its own thread and on the loop, shortly after the channel; and
    # a call in a cycle with its exception holds its connection until it is collected.
    async with asyncio.timeout(5):
        while (asyncio.all_tasks() - tasks - {asyncio.current_task()}) or (_descriptors() - descriptors):
            gc.collect()
            await asyncio.sleep(0.01)  # no event says that gRPC has let go


@pytest.fixture(autouse=True)
def blocking_calls_fail(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """A product that blocks the loop fails its test; the test's own server handling may."""
    with blockbuster_ctx("nvrx_async") as blockbuster:
        # Until exec only, and not in a thread: the kernel ties parent-death signals to threads.
        blockbuster.functions["os.read"].can_block_in("subprocess.py", {"_execute_child"})
        yield blockbuster


def _descriptors() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue  # the one the listing itself used
        if target.startswith("socket:") or "pidfd" in target or "nvrx" in target:
            found.add(target)
    return found
