"""Time from SIGKILL of a rank until every rank is at its next step: warm, cold, torchrun, ft_launcher.

    python benchmarks/restart.py --runs 3

Runs are interleaved: each round of the table has every peer once. gloo on loopback; nothing but the launcher
differs. The last rank is killed from outside, once all ranks make steps (and warm workers are ready).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from _table import machine, spread, table

ROOT = Path(__file__).resolve().parent.parent
WORKER = str(Path(__file__).with_name("_restart_worker.py"))
SLOTS = 2
SETTLED_STEPS = 20
LIMIT_S = 30.0
LOOK_S = 0.02
PHASES = ("seen", "told", "gone", "sealed", "started", "user code", "group", "first step")


def main() -> None:
    arguments = parse()
    print(f"# Restart: {machine()}\n")
    found: dict[tuple[int, str], list[dict[str, float]]] = defaultdict(list)
    for _ in range(arguments.runs):
        for nodes in arguments.nodes:
            for peer in arguments.peers:
                try:
                    found[nodes, peer].append(measure(peer, nodes))
                except TimeoutError as error:
                    found[nodes, peer].append({})
                    print(f"{peer}, {nodes} nodes: did not recover within {LIMIT_S:g} s", file=sys.stderr)
                    print(error if arguments.verbose else "", file=sys.stderr)
    show(arguments, found)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--verbose", action="store_true", help="the output of runs that failed")
    parser.add_argument("--nodes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    parser.add_argument("--peers", type=lambda text: text.split(","), default=None)
    arguments = parser.parse_args()
    arguments.peers = arguments.peers or [
        peer for peer in PEERS if peer != "ft_launcher" or shutil.which(peer)
    ]
    return arguments


def show(arguments: argparse.Namespace, found: dict[tuple[int, str], list[dict[str, float]]]) -> None:
    rows = []
    for nodes in arguments.nodes:
        base = found.get((nodes, "torchrun own store"), [])
        for peer in arguments.peers:
            runs = found[nodes, peer]
            totals = [run["total"] for run in runs if run]
            pairs = zip(runs, base, strict=False)
            ratios = [mine["total"] / theirs["total"] for mine, theirs in pairs if mine and theirs]
            rows.append(
                [
                    f"{nodes} x {SLOTS}",
                    peer,
                    spread(totals, 1000),
                    spread(ratios, 1, 3),
                    f"{len(runs) - len(totals)} of {len(runs)}",
                ]
            )
    print(
        table(
            [
                "agents x ranks",
                "launcher",
                "SIGKILL → all at next step, ms",
                "of torchrun with its own store, in the same run",
                "not recovered in 30 s",
            ],
            rows,
        )
    )
    print("\nWhere the milliseconds go (since the SIGKILL, latest of all ranks):\n")
    rows = []
    for (nodes, peer), runs in found.items():
        cells = [spread([run[phase] for run in runs if phase in run], 1000) for phase in PHASES]
        rows.append([f"{nodes} x {SLOTS} {peer}", *cells])
    print(table(["", *PHASES], rows))


# Launchers -----------------------------------------------------------------------------------------------

Command = Callable[[int, int, int, Path], list[str]]


def ours(*options: str) -> Command:
    def command(nodes: int, node: int, port: int, folder: Path) -> list[str]:
        many = ["--nnodes", str(nodes), "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "bench"]
        where = ["--standalone"] if nodes == 1 else [*many, "--node-id", f"n{node}"]
        logs = ["--log-dir", str(folder / f"logs{node}")]
        launcher = [sys.executable, "-m", "nvrx_launcher", *where, *logs, *options]
        return [*launcher, "--max-restarts", "3", "--nproc-per-node", str(SLOTS), WORKER]

    return command


def torchrun(program: Sequence[str]) -> Command:
    def command(nodes: int, node: int, port: int, folder: Path) -> list[str]:
        del folder, node
        many = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        where = ["--standalone"] if nodes == 1 else [*many, "--rdzv-id", "bench"]
        return [*program, *where, "--max-restarts", "3", "--nproc-per-node", str(SLOTS), WORKER]

    return command


PEERS: dict[str, tuple[Command, dict[str, str]]] = {
    "nvrx-launch warm": (ours(), {}),
    "nvrx-launch cold": (ours("--warm-workers", "off"), {}),
    "torchrun": (torchrun([sys.executable, "-m", "torch.distributed.run"]), {}),
    "torchrun own store": (
        torchrun([sys.executable, "-m", "torch.distributed.run"]),
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    "ft_launcher": (torchrun(["ft_launcher"]), {}),
}


@contextmanager
def launched(peer: str, nodes: int, folder: Path) -> Iterator[None]:
    command, extra = PEERS[peer]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join(str(ROOT / part) for part in (".", "launcher", "telemetry"))
    env = {**os.environ, "PYTHONPATH": path, "BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": "1", **extra}
    with ExitStack() as stack:
        output = stack.enter_context((folder / "output").open("wb"))
        agents = [
            subprocess.Popen(
                command(nodes, node, port, folder),
                env=env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            for node in range(nodes)
        ]
        try:
            yield
        finally:
            for agent in agents:
                agent.send_signal(signal.SIGTERM)
            for agent in agents:
                try:
                    agent.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(agent.pid, signal.SIGKILL)
                    agent.wait()


# One run -------------------------------------------------------------------------------------------------


def measure(peer: str, nodes: int) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="nvrx-bench-", dir="/dev/shm"))
    (folder / "stamps").mkdir()
    try:
        with launched(peer, nodes, folder / "stamps"):
            world = nodes * SLOTS
            until(lambda: len(settled(folder)) == world, folder)
            if peer == "nvrx-launch warm":
                until(lambda: len(list(warm_ready(folder))) == nodes, folder)
            before = {file.name for file in settled(folder)}
            victim = next(name for name in before if name.startswith(f"{world - 1}-"))
            killed_s, killed_at = time.monotonic(), time.time()
            os.kill(int(victim.partition("-")[2]), signal.SIGKILL)
            until(lambda: len(new(folder, before)) == world, folder)
            stamps = [read(file) for file in new(folder, before)]
        found = {"total": max(one["step"] for one in stamps) - killed_s}
        names = {"start": "user code", "group": "group", "step": "first step"}
        found |= {to: max(one[name] for one in stamps) - killed_s for name, to in names.items()}
        return found | phases(folder, killed_at)
    finally:
        shutil.rmtree(folder)


def until(done: Callable[[], bool], folder: Path) -> None:
    """Look again and again: the launchers under test tell nobody else."""
    limit_s = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > limit_s:
            raise TimeoutError((folder / "stamps" / "output").read_text(errors="replace")[-4000:])
        time.sleep(LOOK_S)


def settled(folder: Path) -> list[Path]:
    return [file for file in stamp_files(folder) if file.read_text().count("step") >= SETTLED_STEPS]


def new(folder: Path, before: set[str]) -> list[Path]:
    return [file for file in stamp_files(folder) if file.name not in before and "step" in file.read_text()]


def stamp_files(folder: Path) -> list[Path]:
    return [file for file in (folder / "stamps").iterdir() if re.fullmatch(r"\d+-\d+", file.name)]


def read(file: Path) -> dict[str, float]:
    """The first stamp of each name."""
    found: dict[str, float] = {}
    for line in file.read_text().splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, float(value))
    return found


def warm_ready(folder: Path) -> Iterator[str]:
    for log in folder.glob("stamps/logs*/*/agent-*.log"):
        yield from (line for line in log.read_text().splitlines() if f"warm workers: {SLOTS} ready" in line)


def phases(folder: Path, killed_at: float) -> dict[str, float]:
    """From the agents' logs: when the last agent had got so far, in seconds since the SIGKILL."""
    marks = {
        "seen": r"interrupting round 0",
        "told": r"member: (interrupting round 0|ranks are being stopped)",
        "gone": r"reporting on round 0",
        "sealed": r"coordinator: sealing round 1",
        "started": r"starting ranks of round 1",
    }
    found: dict[str, float] = {}
    for log in folder.glob("stamps/logs*/*/agent-*.log"):
        lines = log.read_text().splitlines()
        for name, pattern in marks.items():
            at = next((stamp(line) - killed_at for line in lines if re.search(pattern, line)), None)
            if at is not None:
                found[name] = max(found.get(name, at), at)
    return found


def stamp(line: str) -> float:
    return datetime.fromisoformat(line.split(" ", 1)[0]).timestamp()


if __name__ == "__main__":
    main()
