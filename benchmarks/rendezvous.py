"""One rank dies: when do all of N agents run the next round? And what does it cost etcd?

    python benchmarks/rendezvous.py --agents 64,128,256,1000 --rounds 5

The agents are simulated (`_agents.py`): real machines and real etcd traffic, no processes. They share this
machine's cores with each other and with etcd, which a job's agents would not.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE

import anyio
from _agents import Stamps, agents
from _table import machine, quantile, spread, table
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from nvrx_async.etcd.server import EmbeddedServer

SLOTS = 8
HEAD = (
    "agents",
    "first round, s",
    "agent's CPU for it, ms",
    "etcd's, ms",
    "messages from etcd",
    "all told, ms",
    "99 % told, ms",
    "all run again, ms",
    "agent's CPU, ms",
    "etcd's CPU, ms",
    "requests",
    "KiB",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--agents", type=lambda text: [int(n) for n in text.split(",")], default=[64, 128, 256, 1000]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        endpoint, *numbers = arguments.serve
        anyio.run(serve, endpoint, *map(int, numbers))
        return
    print(f"# Rendezvous: {machine()}\n")
    rows = [anyio.run(measure, count, arguments.rounds, arguments.processes) for count in arguments.agents]
    print(table(HEAD, rows))
    print(
        "\nCPU, requests and KiB: per agent and restart, user and system; requests and bytes as etcd counts them,\n"
        f"without lease renewals. {SLOTS} ranks per agent. The agents share {arguments.processes} processes."
    )


# A process of agents -------------------------------------------------------------------------------------


async def serve(endpoint: str, total: int, first: int, count: int) -> None:
    """Tell when all agents here run a round; a line on stdin makes a rank of the first agent fail."""
    stamps, counts = Stamps(), {}
    orders = anyio.wrap_file(sys.stdin)
    print("ready", 0, flush=True)
    await orders.readline()

    def on_start(number: int) -> None:
        counts[number] = counts.get(number, 0) + 1
        if counts[number] == count:
            told = stamps.told.get(number - 1, [0.0])
            print("round", number, max(stamps.started[number]), *told, flush=True)

    async with agents(endpoint, total, first, count, SLOTS, stamps, on_start) as made:
        while order := (await orders.readline()).strip():
            if order == "settle":
                gc.collect()
                gc.freeze()  # hundreds of agents in one process: no agent of a job has that much to look through
            print(order, made[-1].fail() if order == "fail" else 0, flush=True)


# The whole -----------------------------------------------------------------------------------------------


async def measure(total: int, rounds: int, processes: int) -> Sequence[str]:
    again, told_all, told_most, cpu, requests, volume = [], [], [], [], [], []
    etcd_cpu = []
    async with EmbeddedServer() as server, anyio.create_task_group() as tasks:
        endpoint = f"127.0.0.1:{server.port}"
        parts = [await part(endpoint, total, number, processes) for number in range(processes)]
        lines = [Lines(child) for child in parts]
        for one in lines:
            await one.next("ready")
        first = await first_round(endpoint, parts, lines, total)
        await anyio.sleep(2 + total / 400)  # elections and listings of the beginning are over
        for child, answers in zip(parts, lines, strict=True):
            await order(child, "settle", answers)
        for _ in range(rounds):
            before, busy_s = figures(endpoint), used_s(parts)
            fault_s = await order(parts[-1], "fail", lines[-1])
            found = [await one.next("round") for one in lines]
            again.append(max(one[1] for one in found) - fault_s)
            used = [after - busy for after, busy in zip(used_s(parts), busy_s, strict=True)]
            cpu.append(used[0] / total)
            etcd_cpu.append(used[1] / total)
            told = [at_s - fault_s for one in found for at_s in one[2:]]
            told_all.append(max(told))
            told_most.append(quantile(told, 0.99))
            await anyio.sleep(0.5 + total / 1000)
            after = figures(endpoint)
            requests.append((after[0] - before[0]) / total)
            volume.append((after[1] - before[1]) / total / 1024)
        for child in parts:
            child.kill()
            await child.wait()
        tasks.cancel_scope.cancel()
    cells = [spread(told_all, 1000), spread(told_most, 1000), spread(again, 1000)]
    return [
        f"{total:,}",
        *first,
        *cells,
        spread(cpu, 1000, 2),
        spread(etcd_cpu, 1000, 2),
        spread(requests, 1, 1),
        spread(volume, 1, 1),
    ]


async def first_round(
    endpoint: str, parts: Sequence[Process], lines: Sequence[Lines], total: int
) -> Sequence[str]:
    """Let all agents begin at once: seconds until all run, and per agent CPU, etcd's CPU and etcd's messages."""
    before, busy_s, began_s = figures(endpoint), used_s(parts), time.monotonic()
    for child in parts:
        assert child.stdin is not None
        await child.stdin.send(b"go\n")
    for one in lines:
        await one.next("round")
    took_s = time.monotonic() - began_s
    used = [after - busy for after, busy in zip(used_s(parts), busy_s, strict=True)]
    messages = (figures(endpoint)[2] - before[2]) / total
    return f"{took_s:.2f}", *(f"{1000 * cpu_s / total:.2f}" for cpu_s in used), f"{messages:.1f}"


async def order(child: Process, word: str, answers: Lines) -> float:
    """Have a process of agents do something; what it answers."""
    assert child.stdin is not None
    await child.stdin.send(f"{word}\n".encode())
    return (await answers.next(word))[0]


def used_s(parts: Sequence[Process]) -> tuple[float, float]:
    """CPU time so far: of all agents, of etcd."""
    agents_of = {child.pid for child in parts}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    others = {int(pid) for pid in children} - agents_of
    return sum(map(cpu_s, agents_of)), sum(map(cpu_s, others))


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def part(endpoint: str, total: int, number: int, processes: int) -> Process:
    first, last = total * number // processes, total * (number + 1) // processes
    words = [sys.executable, __file__, "--serve", endpoint, str(total), str(first), str(last - first)]
    return await anyio.open_process(words, stdin=PIPE, stdout=PIPE, stderr=None)


class Lines:
    """What a process of agents says, line by line."""

    def __init__(self, child: Process) -> None:
        assert child.stdout is not None
        self._stream = TextReceiveStream(child.stdout)
        self._text = ""

    async def next(self, name: str) -> list[float]:
        """The figures of the next line of this name."""
        while True:
            while "\n" not in self._text:
                self._text += await self._stream.receive()
            line, _, self._text = self._text.partition("\n")
            found, *figures = line.split()
            if found == name:
                return [float(figure) for figure in figures]


def figures(endpoint: str) -> tuple[float, float, float]:
    """Requests that etcd has handled or begun, bytes it has moved for clients, and messages it has sent."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    requests = volume = sent = 0.0
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("grpc_server_msg_received_total",)) and "LeaseKeepAlive" not in name:
            requests += float(value)
        if name.startswith("grpc_server_msg_sent_total") and "LeaseKeepAlive" not in name:
            sent += float(value)
        if name.startswith(
            ("etcd_network_client_grpc_received_bytes_total", "etcd_network_client_grpc_sent_bytes_total")
        ):
            volume += float(value)
    return requests, volume, sent


if __name__ == "__main__":
    main()
