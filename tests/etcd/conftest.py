"""Fixtures: one etcd for the session, a prefix and a client per test, and a server a test may hurt."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from blockbuster import BlockBuster, blockbuster_ctx
from grpc.aio import init_grpc_aio
from support.etcd_server import EtcdProcess, etcd_process

from nvrx_async.etcd import EtcdClient, EtcdConfig

# Holds gRPC's one poller for all tests: else it comes and goes with the channels, its socket pair too.
init_grpc_aio()


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdProcess]:
    """Not to be stopped, compacted or given users: many tests use it."""
    with etcd_process() as server:
        yield server


@pytest.fixture
def etcd() -> Iterator[EtcdProcess]:
    """A server of the test's own."""
    with etcd_process() as server:
        yield server


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
    gc.collect()  # a gRPC call in a cycle with its exception holds its connection until then
    # grpc.aio ends its calls and sockets on its own thread and the loop, shortly after the channel: bounded.
    async with asyncio.timeout(5):
        while (asyncio.all_tasks() - tasks - {asyncio.current_task()}) or (_descriptors() - descriptors):
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def blocking_calls_fail(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """A product that blocks the loop fails its test; the test's own server handling may."""
    with blockbuster_ctx("nvrx_async") as blockbuster:
        # Until exec only, and not in a thread: the kernel ties parent-death signals to threads.
        blockbuster.functions["os.read"].can_block_in("subprocess.py", {"_execute_child"})
        yield blockbuster


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:") or "pidfd" in target or "nvrx" in target:
            found.add(target)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
