"""A process dies: when have all of N agents been told?

    python benchmarks/notify.py --agents 8,64,256 --deaths 20

One simulated agent sees the death of a real process by its pidfd and writes one key; N agents, each with a
feed (watch stream) of its own, wait for that key. All of them share one process, and this machine's cores
with etcd: the last of N is late by the CPU time of the others, which a job's agents would not share.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import anyio
from _table import machine, quantile, spread, table

from nvrx_async.etcd import EtcdClient, EtcdConfig, Feed
from nvrx_async.etcd.server import EmbeddedServer
from nvrx_async.etcd.types import CreatedAt, KeyValue, Listing, Put, Scope, Txn

HEAD = (
    "agents",
    "deaths",
    "written, ms",
    "median agent, ms",
    "99 % of agents, ms",
    "all agents, ms",
    "CPU per agent, ms",
)
PER_CLIENT = 50
PAUSE_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=lambda text: [int(n) for n in text.split(",")], default=[8, 64, 256])
    parser.add_argument("--deaths", type=int, default=20)
    arguments = parser.parse_args()
    print(f"# Notification: {machine()}\n")
    rows = [anyio.run(measure, count, arguments.deaths) for count in arguments.agents]
    print(table(HEAD, rows))


async def measure(count: int, deaths: int) -> Sequence[str]:
    written, told, last, cpu = [], [], [], []
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer())
        config = EtcdConfig((f"127.0.0.1:{server.port}",))
        writer = await stack.enter_async_context(EtcdClient(config))
        feeds = []
        for number in range(count):
            if number % PER_CLIENT == 0:
                client = await stack.enter_async_context(EtcdClient(config))
            feeds.append(await stack.enter_async_context(Feed(client)))
        for death in range(deaths):
            key, arrivals = f"/bench/{death}/interrupt", []
            ready = Countdown(count)
            async with anyio.create_task_group() as tasks:
                for feed in feeds:
                    tasks.start_soon(wait, feed, key, ready, arrivals)
                await ready.zero.wait()
                await anyio.sleep(PAUSE_S)
                before_s = time.process_time()
                killed_s = await die()
                await writer.commit(Txn((CreatedAt(key, 0),), (Put(key, b"{}"),)))
                written.append(time.monotonic() - killed_s)
            cpu.append((time.process_time() - before_s) / count)
            found = sorted(at_s - killed_s for at_s in arrivals)
            told += found
            last.append(found[-1])
    most = [quantile(told, 0.5), quantile(told, 0.99)]
    middle, nearly = (f"{1000 * value:.1f}" for value in most)
    return [
        f"{count}",
        f"{deaths}",
        spread(written, 1000, 1),
        middle,
        nearly,
        spread(last, 1000, 1),
        spread(cpu, 1000, 2),
    ]


class Countdown:
    """`zero` is set when everybody has come."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.zero = anyio.Event()

    def one(self) -> None:
        """Somebody has come."""
        self._left -= 1
        if not self._left:
            self.zero.set()


async def wait(feed: Feed, key: str, ready: Countdown, arrivals: list[float]) -> None:
    """Follow one key until it is written."""
    feed.set_scopes(frozenset({Scope(key)}))
    async for item in feed:
        if isinstance(item, Listing) and item.scope.key == key:
            ready.one()
        if isinstance(item, KeyValue) and item.key == key:
            arrivals.append(time.monotonic())
            return


async def die() -> float:
    """Kill a process and see it dead; returns when it was killed."""
    words = [sys.executable, "-I", "-S", "-c", "input()"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE)  # noqa: ASYNC220 - nothing else runs meanwhile
    pidfd = os.pidfd_open(child.pid)
    try:
        killed_s = time.monotonic()
        child.kill()
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
    return killed_s


if __name__ == "__main__":
    main()
