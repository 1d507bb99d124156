"""Time from SIGKILL of a rank until every rank is at its next step: warm, cold, torchrun, ft_launcher.

    python benchmarks/restart.py --runs 3 --picture docs/images/restart_phases.svg

Runs are interleaved: each round of the table has every peer once. gloo on loopback; nothing but the launcher
differs. The last rank is killed from outside, once all ranks make steps (and warm workers are ready). ft_launcher
takes part where `--ft-launcher` or PATH names one. Our phases are those of the records in etcd.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import anyio
from _phases import PHASES, picture
from _table import machine, spread, table

from nvrx_async.etcd import EtcdClient, EtcdConfig, find_binary
from nvrx_async.job.keys import AttemptKeys, job_scope
from nvrx_async.job.round_record import round_record

ROOT = Path(__file__).resolve().parent.parent
WORKER = str(Path(__file__).with_name("_restart_worker.py"))
RUN_ID = "bench"
SLOTS = 2
SETTLED_STEPS = 20
LOOK_S = 0.02


def main() -> None:
    arguments = parse()
    print(f"# Restart: {machine()}\n")
    found: dict[tuple[int, str], list[dict[str, float]]] = defaultdict(list)
    for _ in range(arguments.runs):
        for nodes in arguments.nodes:
            for peer in arguments.peers:
                try:
                    found[nodes, peer].append(measure(peer, nodes, arguments))
                except TimeoutError as error:
                    found[nodes, peer].append({})
                    print(f"{peer}, {nodes} nodes: not within {arguments.limit_s:g} s", file=sys.stderr)
                    print(error if arguments.verbose else "", file=sys.stderr)
    show(arguments, found)
    if arguments.picture:
        shown = {
            f"{peer.removeprefix('nvrx-launch ')}, {n} x {SLOTS}": runs for (n, peer), runs in found.items()
        }
        Path(arguments.picture).write_text(picture(shown), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--verbose", action="store_true", help="the output of runs that failed")
    parser.add_argument("--limit-s", type=float, default=30.0, help="seconds to wait for a recovery")
    parser.add_argument(
        "--picture", metavar="SVG", help="write where the milliseconds of our warm restarts go"
    )
    parser.add_argument("--ft-launcher", default=shutil.which("ft_launcher"), metavar="PATH")
    parser.add_argument("--nodes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    parser.add_argument("--peers", type=lambda text: text.split(","), default=None)
    arguments = parser.parse_args()
    arguments.peers = arguments.peers or [
        peer for peer in PEERS if peer != "ft_launcher" or arguments.ft_launcher
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
                f"not recovered in {arguments.limit_s:g} s",
            ],
            rows,
        )
    )
    print("\nWhere the milliseconds go (since the SIGKILL, latest of all ranks):\n")
    rows = []
    for (nodes, peer), runs in found.items():
        if not any(runs):
            continue
        cells = [spread([run[phase] for run in runs if phase in run], 1000) for phase in PHASES]
        rows.append([f"{nodes} x {SLOTS} {peer}", *cells])
    print(table(["", *PHASES], rows))


# Launchers -----------------------------------------------------------------------------------------------

Command = Callable[[int, int, int, Path], list[str]]


def ours(*options: str) -> Command:
    def command(nodes: int, node: int, port: int, folder: Path) -> list[str]:
        many = ["--nnodes", str(nodes), "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", RUN_ID]
        where = [*many, "--node-id", f"n{node}"]
        logs = ["--log-dir", str(folder / f"logs{node}")]
        launcher = [sys.executable, "-m", "nvrx_launcher", *where, *logs, *options]
        return [*launcher, "--max-restarts", "3", "--nproc-per-node", str(SLOTS), WORKER]

    return command


def torchrun(*program: str) -> Command:
    def command(nodes: int, node: int, port: int, folder: Path) -> list[str]:
        del folder, node
        many = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        where = ["--standalone"] if nodes == 1 else [*many, "--rdzv-id", RUN_ID]
        return [*program, *where, "--max-restarts", "3", "--nproc-per-node", str(SLOTS), WORKER]

    return command


PEERS: dict[str, tuple[Command, dict[str, str]]] = {
    "nvrx-launch warm": (ours(), {}),
    "nvrx-launch cold": (ours("--warm-workers", "off"), {}),
    "torchrun": (torchrun(sys.executable, "-m", "torch.distributed.run"), {}),
    "torchrun own store": (
        torchrun(sys.executable, "-m", "torch.distributed.run"),
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    "ft_launcher": (torchrun("ft_launcher", "--ignore-missing-fault-tol-cfg"), {}),
}


@contextmanager
def launched(peer: str, nodes: int, folder: Path, port: int, ft_launcher: str | None) -> Iterator[None]:
    command, extra = PEERS[peer]
    path = os.pathsep.join(str(ROOT / part) for part in (".", "launcher", "telemetry"))
    env = {**os.environ, "PYTHONPATH": path, "BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": "1", **extra}
    with ExitStack() as stack:
        output = stack.enter_context((folder / "output").open("wb"))
        agents = [
            subprocess.Popen(
                [
                    ft_launcher or word if word == "ft_launcher" else word
                    for word in command(nodes, node, port, folder)
                ],
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


def measure(peer: str, nodes: int, arguments: argparse.Namespace) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="nvrx-bench-", dir="/dev/shm"))
    (folder / "stamps").mkdir()
    limit_s, port = arguments.limit_s, free_port()
    is_ours = peer.startswith("nvrx-launch")
    try:
        with ExitStack() as running:
            if is_ours:
                running.enter_context(etcd(folder / "etcd", port))
            running.enter_context(launched(peer, nodes, folder / "stamps", port, arguments.ft_launcher))
            world = nodes * SLOTS
            until(lambda: len(settled(folder)) == world, folder, limit_s + 30)
            if peer == "nvrx-launch warm":
                until(lambda: len(list(warm_ready(folder))) == nodes, folder, limit_s + 30)
            before = {file.name for file in settled(folder)}
            victim = next(name for name in before if name.startswith(f"{world - 1}-"))
            killed_s, killed_at = time.monotonic(), time.time()
            os.kill(int(victim.partition("-")[2]), signal.SIGKILL)
            until(lambda: len(new(folder, before)) == world, folder, limit_s)
            stamps = [read(file) for file in new(folder, before)]
            found = anyio.run(recorded, port, killed_at) | released(folder, killed_at) if is_ours else {}
        found |= {"total": max(one["step"] for one in stamps) - killed_s}
        names = {"start": "user code", "group": "process group", "step": "first step"}
        return found | {to: max(one[name] for one in stamps) - killed_s for name, to in names.items()}
    finally:
        shutil.rmtree(folder)


def until(done: Callable[[], bool], folder: Path, within_s: float) -> None:
    """Look again and again: the launchers under test tell nobody else."""
    ends_s = time.monotonic() + within_s
    while not done():
        if time.monotonic() > ends_s:
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


async def recorded(port: int, killed_at: float) -> dict[str, float]:
    """From the records in etcd: when the last node had got so far, in seconds since the SIGKILL."""
    async with EtcdClient(EtcdConfig((f"127.0.0.1:{port}",))) as client:
        keys = AttemptKeys(RUN_ID, 0)
        items = (await client.list(job_scope(RUN_ID))).items
    held = {item.key: item.value for item in items}
    ended, following = (round_record(keys, number, held).times for number in (0, 1))
    moments = {
        "seen": ended.fault_utc,
        "told": ended.told_utc,
        "stopped": ended.stopping_utc,
        "reaped": ended.gone_utc,
        "joined": ended.reported_utc,
        "sealed": following.running_utc,
        "released": following.released_utc,
    }
    return {name: datetime.fromisoformat(utc).timestamp() - killed_at for name, utc in moments.items() if utc}


def released(folder: Path, killed_at: float) -> dict[str, float]:
    """When the last agent gave the order to start, from their logs: records tell it when the round is over."""
    lines = [
        line for log in folder.glob("stamps/logs*/*/agent-*.log") for line in log.read_text().splitlines()
    ]
    starts = [line.split(" ", 1)[0] for line in lines if "starting ranks of round 1" in line]
    return (
        {"released": max(datetime.fromisoformat(one).timestamp() for one in starts) - killed_at}
        if starts
        else {}
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def etcd(folder: Path, port: int) -> Iterator[None]:
    """An etcd that outlives the job, so that its records can be read."""
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    words = [
        str(find_binary()),
        "--data-dir",
        str(folder),
        "--listen-client-urls",
        url,
        "--advertise-client-urls",
        url,
    ]
    words += [
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
        "--initial-cluster",
        f"default={peer}",
    ]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            server.kill()


if __name__ == "__main__":
    main()
