"""Time from the loss of a node until every rank is at its next step, etcd running on the job's own nodes.

    python benchmarks/nodeloss.py --runs 5

Three nodes and a spare, each an agent of this machine with one rank (gloo on loopback), the spare with a warm worker.
Agent, keeper, rank and etcd member of one node are killed at once, at a random moment between two renewals of its
lease; TTL 3 s. Once the node whose etcd member leads, once another, by turns.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from _table import machine, spread, table

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / part) for part in (".", "launcher", "telemetry", "tests")]

from support.nodes import member_endpoints  # noqa: E402 - found by the line above

WORKER = str(Path(__file__).with_name("_restart_worker.py"))
NODES, TTL_S = 3, 3
SETTLED_STEPS = 20
LIMIT_S = 60.0
SETUP_S = 240.0
"""Warm workers are prepared at low priority: on a busy machine that takes its time."""
LOOK_S = 0.01
WARM = "warm workers: 1 ready"
PHASES = ("told", "started", "next step")
MARKS = {
    "told": r"member: ranks are being stopped|interrupting round",
    "started": r"starting ranks of round [1-9]",
}
LEADER, FOLLOWER = "leads", "follows"
KINDS = (FOLLOWER, LEADER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    parser.add_argument("--ttl", type=int, default=TTL_S, help="of the agents' leases, seconds")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    arguments = parser.parse_args()
    print(f"# Loss of a node: {machine()}\n")
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in arguments.kinds}
    lost: dict[str, int] = dict.fromkeys(arguments.kinds, 0)
    for _ in range(arguments.runs):
        for kind in arguments.kinds:
            try:
                found[kind].append(measure(kind, arguments.ttl))
            except TimeoutError as error:
                lost[kind] += 1
                print(f"{kind}: {error}", file=sys.stderr)
    head = [
        "lost node's etcd member",
        "runs",
        *(f"{name}, s" for name in PHASES),
        f"not within {LIMIT_S:g} s",
    ]
    rows = []
    for kind, runs in found.items():
        cells = [spread([run[name] for run in runs if name in run], 1, 2) for name in PHASES]
        rows.append([kind, str(len(runs)), *cells, str(lost[kind])])
    print("Seconds since SIGKILL, the latest of all nodes: median [range].\n")
    print(table(head, rows))


def measure(kind: str, ttl: int) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="nvrx-bench-", dir="/dev/shm"))
    (folder / "stamps").mkdir()
    endpoints = member_endpoints(NODES)
    try:
        with launched(folder, endpoints, ttl) as start:
            agents = [start(number) for number in range(NODES)]
            until(lambda: len(stamped(folder, SETTLED_STEPS)) == NODES, folder, SETUP_S)
            agents.append(start(NODES))
            until(lambda: warm(folder) == NODES + 1, folder, SETUP_S)
            time.sleep(random.uniform(0.5, 0.5 + ttl / 3))
            victim = pick(agents[:NODES], kind)
            before = {file.name for file in stamped(folder, 1)}
            killed_s, killed_at = time.monotonic(), time.time()
            for pid in tree(victim.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda: len(again(folder, before)) == NODES, folder)
            stepped_s = max(first_step(file) for file in again(folder, before)) - killed_s
            return {**phases(folder, killed_at), PHASES[-1]: stepped_s}
    finally:
        shutil.rmtree(folder)
        for endpoint in endpoints:
            for left in Path("/dev/shm").glob(f"nvrx-member-*-{endpoint.rpartition(':')[2]}-*"):
                shutil.rmtree(left)


@contextmanager
def launched(
    folder: Path, endpoints: list[str], ttl: int
) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    path = os.pathsep.join(str(ROOT / part) for part in (".", "launcher", "telemetry"))
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "BENCH_FOLDER": str(folder / "stamps"),
        "OMP_NUM_THREADS": "1",
    }
    agents: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        output = stack.enter_context((folder / "output").open("wb"))

        def start(number: int) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "nvrx_launcher", "--nnodes", str(NODES), "--nproc-per-node", "1"]
            command += [
                "--rdzv-endpoint",
                ",".join(endpoints),
                "--rdzv-id",
                folder.name,
                "--node-id",
                f"n{number}",
            ]
            command += [
                "--warm-workers",
                "1",
                "--lease-ttl",
                str(ttl),
                "--log-dir",
                str(folder / f"logs{number}"),
                WORKER,
            ]
            agent = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
            agents.append(agent)
            return agent

        try:
            yield start
        finally:
            for agent in agents:
                for pid in tree(agent.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                agent.wait()


def pick(agents: list[subprocess.Popen[bytes]], kind: str) -> subprocess.Popen[bytes]:
    leaders = [agent for agent in agents if leads(agent.pid)]
    if kind == LEADER:
        return leaders[0]
    return next(agent for agent in agents if agent not in leaders)


def leads(pid: int) -> bool:
    """Whether the etcd member below this agent leads."""
    from nvrx_async.etcd.wire import grpc, messages, stubs  # noqa: PLC0415 - loads gRPC

    for child in tree(pid):
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        own = next(
            (word.rpartition("/")[2] for word in words if word.startswith("--listen-client-urls=")), None
        )
        if own:
            with closing(grpc.insecure_channel(own)) as channel:
                status = stubs.MaintenanceStub(channel).Status(messages.StatusRequest(), timeout=5)
                return bool(status.header.member_id == status.leader)
    return False


def tree(root: int) -> list[int]:
    """A process and all below it, in the moment of the look."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


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


def phases(folder: Path, killed_at: float) -> dict[str, float]:
    """From the agents' logs: when the last of them had got so far."""
    found: dict[str, float] = {}
    for log in folder.glob("logs*/*/agent-*.log"):
        for line in log.read_text().splitlines():
            at = datetime.fromisoformat(line.split(" ", 1)[0]).timestamp() - killed_at
            for name, pattern in MARKS.items():
                if at > 0 and re.search(pattern, line):
                    found[name] = max(found.get(name, at), at)
    return found


def warm(folder: Path) -> int:
    return sum(WARM in log.read_text() for log in folder.glob("logs*/*/agent-*.log"))


if __name__ == "__main__":
    main()
