"""Launchers on nodes that can be lost: what is started, how a node is lost, which one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = (".", "launcher", "telemetry", "tests")
sys.path[:0] = [str(ROOT / part) for part in PARTS]

WORKER = str(Path(__file__).with_name("_restart_worker.py"))
NODES = 3
PORT = 2379
TUNED = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
"""torchrun's waits as short as its own documentation lets one think of: a silent node is gone after 3 s."""

Prefix = Callable[[int], tuple[str, ...]]
"""What runs a command on a node."""
Command = Callable[[int], list[str]]


@dataclass(frozen=True)
class Nodes:
    """Launchers by node, in the order of their start, and how one of them is lost."""

    started: list[subprocess.Popen[bytes]]
    start: Callable[[int], None]
    lose: Callable[[int], None]

    def tree(self, number: int) -> list[int]:
        """All processes of the node, in the moment of the look."""
        return tree(self.started[number].pid)


def ours(endpoints: Sequence[str], folder: Path, ttl: int) -> Command:
    """`nvrx-launch` with a warm worker, etcd at these endpoints."""

    def command(number: int) -> list[str]:
        launcher = [sys.executable, "-m", "nvrx_launcher", "--nnodes", str(NODES), "--nproc-per-node", "1"]
        meeting = [
            "--rdzv-endpoint",
            ",".join(endpoints),
            "--rdzv-id",
            folder.name,
            "--node-id",
            f"n{number}",
        ]
        waits = ["--warm-workers", "1", "--lease-ttl", str(ttl)]
        return [*launcher, *meeting, *waits, "--log-dir", str(folder / f"logs{number}"), WORKER]

    return command


def torchrun(endpoint: str, *options: str) -> Command:
    """`torchrun` with its c10d store on the node that starts first, and a store of their own for the ranks.

    With the one store for both, which is its default, survivors did not find together again (see `launched`).
    """

    def command(number: int) -> list[str]:
        del number
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES)]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "bench"]
        return [*launcher, "--nproc-per-node", "1", *meeting, "--max-restarts", "9", *options, WORKER]

    return command


@contextmanager
def launched(
    folder: Path, command: Command, *, on: Prefix = lambda _: (), cut: Callable[[int], None] | None = None
) -> Iterator[Nodes]:
    """Launchers that are started one by one; all that is below them is killed in the end.

    A node is lost by SIGKILL of all that it runs, or by `cut`, which makes its network silent.
    """
    path = os.pathsep.join(str(ROOT / part) for part in PARTS)
    env = {**os.environ, "PYTHONPATH": path, "BENCH_FOLDER": str(folder / "stamps"), "OMP_NUM_THREADS": "1"}
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    started: list[subprocess.Popen[bytes]] = []
    with (folder / "output").open("wb") as output:

        def start(number: int) -> None:
            words = [*on(number), *command(number)]
            started.append(
                subprocess.Popen(words, env=env, stdout=output, stderr=output, start_new_session=True)
            )

        def lose(number: int) -> None:
            if cut is None:
                kill(started[number].pid)
            else:
                cut(number)

        try:
            yield Nodes(started, start, lose)
        finally:
            for launcher in started:
                kill(launcher.pid)
                launcher.wait()


def member_leads(pids: Sequence[int]) -> bool:
    """Whether the etcd member among these processes leads its cluster."""
    from nvrx_async.etcd.wire import grpc, messages, stubs  # noqa: PLC0415 - loads gRPC

    flag = "--listen-client-urls="
    for pid in pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        own = next((word.rpartition("/")[2] for word in words if word.startswith(flag)), None)
        if own:
            with closing(grpc.insecure_channel(own)) as channel:
                status = stubs.MaintenanceStub(channel).Status(messages.StatusRequest(), timeout=5)
                return bool(status.header.member_id == status.leader)
    return False


def kill(root: int) -> None:
    """A process and all below it; the topmost first, so that nobody is told what died before it."""
    for pid in tree(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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


def free_port() -> int:
    """A port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
