"""Time from the loss of a node until every rank is at its next step; ours with etcd on the job's own nodes.

    python benchmarks/nodeloss.py --runs 3                     below eight minutes on a busy machine
    python benchmarks/nodeloss.py --runs 3 --by silence        as root

Three nodes and a spare, each an agent of this machine with one rank (gloo on loopback), the spare with a warm worker.
All that one node runs is killed at once, its etcd member too, at a random moment between two renewals of its lease;
TTL 3 s. With `--by silence` nodes are network namespaces and the lost one is cut off: nobody gets an answer, not even
that there is none. A node whose etcd member leads is told of apart. torchrun (c10d, the node of its store survives, a
fourth node waits) takes part with its defaults, for which a run takes a minute, and with waits as short as can be set.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from _lost_nodes import NODES, PORT, TUNED, Nodes, free_port, launched, member_leads, ours, torchrun
from _table import machine, spread, table
from support import netspaces
from support.nodes import member_endpoints

TTL_S = 3
SETTLED_STEPS = 20
LIMIT_S = 90.0
SETUP_S = 240.0
"""Warm workers are prepared at low priority: on a busy machine that takes its time."""
LOOK_S = 0.01
SPARE_S = 8.0
"""torchrun's spare imports torch, and then waits without a word."""
WARM = "warm workers: 1 ready"
PHASES = ("told", "started", "next step")
MARKS = {
    "told": r"member: ranks are being stopped|interrupting round",
    "started": r"starting ranks of round [1-9]",
}
FOLLOWER, LEADER = "nvrx-launch", "nvrx-launch, etcd's leader lost"
DEFAULTS, SHORT = "torchrun", "torchrun, short waits"
PEERS = (FOLLOWER, LEADER, SHORT, DEFAULTS)
KILL, SILENCE = "kill", "silence"


def main() -> None:
    arguments = parse()
    if arguments.by == SILENCE and not netspaces.are_own():
        command = netspaces.in_own_namespaces(__file__, *sys.argv[1:])
        os.execvp(command[0], command)
    print(f"# Loss of a node: {machine()}\n", flush=True)
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(arguments.runs):
        for peer in arguments.peers:
            if peer == DEFAULTS and number >= arguments.slow_runs:
                continue
            try:
                found[peer].append(measure(peer, arguments.ttl, arguments.by))
            except TimeoutError as error:
                found[peer].append({})
                print(f"{peer}: {error}", file=sys.stderr)
    print("Seconds since the loss, the latest of all nodes: median [range].\n")
    head = ["launcher", "runs", *(f"{name}, s" for name in PHASES), f"not within {LIMIT_S:g} s"]
    rows = []
    for peer, runs in found.items():
        cells = [spread([run[name] for run in runs if name in run], 1, 2) for name in PHASES]
        rows.append([peer, str(len(runs)), *cells, str(runs.count({}))])
    print(table(head, rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each launcher")
    parser.add_argument("--slow-runs", type=int, default=1, help="of torchrun with its defaults")
    parser.add_argument("--ttl", type=int, default=TTL_S, help="of the agents' leases, seconds")
    parser.add_argument("--by", choices=(KILL, SILENCE), default=KILL, help="how the node is lost")
    parser.add_argument("--peers", type=lambda text: text.split(";"), help=f"such as '{FOLLOWER};{LEADER}'")
    arguments = parser.parse_args()
    if arguments.peers is None:
        arguments.peers = PEERS if arguments.by == KILL else (FOLLOWER, LEADER)
    return arguments


def measure(peer: str, ttl: int, by: str) -> dict[str, float]:
    """One job, one node lost."""
    folder = Path(tempfile.mkdtemp(prefix="nvrx-bench-", dir="/dev/shm"))
    (folder / "stamps").mkdir()
    try:
        if peer in (SHORT, DEFAULTS):
            options, port = () if peer == DEFAULTS else ("--rdzv-conf", TUNED), free_port()
            with launched(folder, torchrun(f"127.0.0.1:{port}", *options)) as nodes:
                return lose(nodes, folder, of_torchrun(nodes, folder, port))
        with own_nodes(folder, ttl, by) as nodes:
            return lose(nodes, folder, of_ours(nodes, folder, ttl, leads=peer == LEADER))
    finally:
        shutil.rmtree(folder)


@contextmanager
def own_nodes(folder: Path, ttl: int, by: str) -> Iterator[Nodes]:
    """Agents with etcd on the first three nodes: on loopback, or each in a network namespace."""
    with ExitStack() as stack:
        if by == KILL:
            endpoints = member_endpoints(NODES)
            stack.callback(forget, endpoints)
            yield stack.enter_context(launched(folder, ours(endpoints, folder, ttl)))
            return
        net = stack.enter_context(netspaces.network_here(NODES + 1))
        endpoints = [f"{net.address(number)}:{PORT}" for number in range(NODES)]
        stack.callback(forget, endpoints)
        command = ours(endpoints, folder, ttl)
        prefix = [host.command("env", "GLOO_SOCKET_IFNAME=net0") for host in net.hosts]
        yield stack.enter_context(launched(folder, command, on=lambda n: prefix[n], cut=net.cut))


def forget(endpoints: list[str]) -> None:
    """Remove what lost nodes have left in memory for their return."""
    for endpoint in endpoints:
        for left in Path("/dev/shm").glob(f"nvrx-member-*-{endpoint.rpartition(':')[2]}-*"):
            shutil.rmtree(left)


def of_ours(nodes: Nodes, folder: Path, ttl: int, *, leads: bool) -> int:
    """Which node to lose, once all is prepared and at a random moment between two renewals."""
    for number in range(NODES):
        nodes.start(number)
    until(lambda: len(stamped(folder, SETTLED_STEPS)) == NODES, folder, SETUP_S)
    nodes.start(NODES)
    until(lambda: warm(folder) == NODES + 1, folder, SETUP_S)
    time.sleep(random.uniform(0.5, 0.5 + ttl / 3))
    leader = next(number for number in range(NODES) if member_leads(nodes.tree(number)))
    return leader if leads else random.choice([number for number in range(NODES) if number != leader])


def of_torchrun(nodes: Nodes, folder: Path, port: int) -> int:
    """A node that does not hold the store; a fourth one waits, as ours does."""
    nodes.start(0)
    until(lambda: answers(port), folder, SETUP_S)
    for number in range(1, NODES):
        nodes.start(number)
    until(lambda: len(stamped(folder, SETTLED_STEPS)) == NODES, folder, SETUP_S)
    nodes.start(NODES)
    time.sleep(SPARE_S)
    return random.choice(range(1, NODES))


def lose(nodes: Nodes, folder: Path, number: int) -> dict[str, float]:
    """Lose this node; when all ranks are at their next step, what happened when."""
    before = {file.name for file in stamped(folder, 1)}
    lost_s, lost_at = time.monotonic(), time.time()
    nodes.lose(number)
    until(lambda: len(again(folder, before)) == NODES, folder)
    stepped_s = max(first_step(file) for file in again(folder, before)) - lost_s
    return {**phases(folder, lost_at, number), PHASES[-1]: stepped_s}


def answers(port: int) -> bool:
    """Whether something listens there on loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# What is told in files ------------------------------------------------------------------------------------


def until(done: Callable[[], bool], folder: Path, limit_s: float = LIMIT_S) -> None:
    """Look again and again: steps are told in files only."""
    ends_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > ends_s:
            raise TimeoutError((folder / "output").read_text(errors="replace")[-4000:])
        time.sleep(LOOK_S)


def stamped(folder: Path, steps: int) -> list[Path]:
    return [file for file in (folder / "stamps").iterdir() if file.read_text().count("step") >= steps]


def again(folder: Path, before: set[str]) -> list[Path]:
    """Stamps of the newest round: one process of each rank that was not there before."""
    return [file for file in stamped(folder, 1) if file.name not in before]


def first_step(file: Path) -> float:
    line = next(line for line in file.read_text().splitlines() if line.startswith("step"))
    return float(line.partition(" ")[2])


def phases(folder: Path, lost_at: float, lost: int) -> dict[str, float]:
    """From the agents' logs, without the lost one's: when the last of them had got so far."""
    found: dict[str, float] = {}
    for log in folder.glob("logs*/*/agent-*.log"):
        if log.is_relative_to(folder / f"logs{lost}"):
            continue
        for line in log.read_text().splitlines():
            at = datetime.fromisoformat(line.split(" ", 1)[0]).timestamp() - lost_at
            for name, pattern in MARKS.items():
                if at > 0 and re.search(pattern, line):
                    found[name] = max(found.get(name, at), at)
    return found


def warm(folder: Path) -> int:
    return sum(WARM in log.read_text() for log in folder.glob("logs*/*/agent-*.log"))


if __name__ == "__main__":
    main()
