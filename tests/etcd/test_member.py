"""A member that does not come up, beside others that do without it, and alone."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.etcd_server import EtcdProcess, etcd_process, free_ports

from nvrx_async.etcd import (
    ClusterMember,
    EtcdClient,
    EtcdConfig,
    MemberFolder,
    MemberSettings,
    ServerStartError,
    parse_endpoint,
    plan_cluster,
)
from nvrx_async.etcd.member_log import opened, tail


@pytest.fixture
def cluster() -> Iterator[EtcdProcess]:
    """What the other members are, for one that asks them."""
    with etcd_process() as server:
        yield server


class Lines:
    """What is said, and the wait for it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._news = anyio.Event()

    def __call__(self, line: str) -> None:
        self.told.append(line)
        self._news.set()

    async def with_words(self, words: str) -> str:
        with anyio.fail_after(20):
            while not (found := [line for line in self.told if words in line]):
                self._news = anyio.Event()
                await self._news.wait()
        return found[0]


@asynccontextmanager
async def broken_member(
    answers: str, log_file: Path, *, formed: bool = False, call_timeout_s: float = 2.0
) -> AsyncIterator[Lines]:
    """A member whose program ends at once; `answers`: the etcd that its client asks."""
    endpoints = [parse_endpoint(f"127.0.0.1:{port}") for port in free_ports(3)]
    plan = plan_cluster(endpoints, uuid.uuid4().hex)
    folder = await anyio.to_thread.run_sync(MemberFolder.take, plan.token)
    assert folder is not None
    settings = MemberSettings(Path("/bin/false"), "127.0.0.1", log_file)
    # A client of the cluster has all addresses; its own member's is only asked while a program runs.
    reached = EtcdConfig((answers, *(one.address for one in endpoints)), call_timeout_s=call_timeout_s)
    lines = Lines()
    async with (
        EtcdClient(reached) as client,
        ClusterMember(plan, plan.members[0], folder, client, settings, formed=formed, say=lines, warn=lines),
    ):
        yield lines


async def test_the_others_go_on_without_a_member_that_never_comes_up(
    cluster: EtcdProcess, tmp_path: Path
) -> None:
    async with broken_member(cluster.endpoint, tmp_path / "etcd.log") as lines:
        said = await lines.with_words("the job goes on without it")
        assert "ended (status 1)" in said
        assert str(tmp_path / "etcd.log") in said


async def test_alone_it_is_the_end(tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    with pytest.raises(ExceptionGroup) as caught:
        async with broken_member(f"127.0.0.1:{nobody}", tmp_path / "etcd.log", call_timeout_s=0.2):
            await anyio.sleep(60)
    assert caught.group_contains(ServerStartError, match="ended .status 1.")


async def test_a_cluster_that_was_there_may_be_away(tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    async with broken_member(
        f"127.0.0.1:{nobody}", tmp_path / "etcd.log", formed=True, call_timeout_s=0.2
    ) as lines:
        assert "no etcd endpoint answered" in await lines.with_words("the job goes on without it")


async def test_a_log_that_cannot_be_written_costs_no_member(cluster: EtcdProcess, tmp_path: Path) -> None:
    async with broken_member(cluster.endpoint, tmp_path / "gone" / "etcd.log") as lines:
        assert "ended (status 1)" in await lines.with_words("starting it again"), (
            "it was started all the same"
        )


async def test_the_log_is_appended_to_and_its_end_told(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    for words in (b"one\n", b"two\n"):
        descriptor = await opened(log)
        await anyio.to_thread.run_sync(os.write, descriptor, words)
        os.close(descriptor)
    assert await anyio.to_thread.run_sync(tail, log) == ("one", "two")
    (why,) = await anyio.to_thread.run_sync(tail, tmp_path / "gone" / "etcd.log")
    assert "No such file" in why
