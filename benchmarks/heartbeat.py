"""What a report costs the training thread and the agent.

    python benchmarks/heartbeat.py [--seconds S]

Compared with a plain floor (a clock read), with a blocking socket client of the shape that most monitors have (length +
pickle, `sendall`), and with NVIDIA's client where it is installed. Figures are printed, not judged.
"""

from __future__ import annotations

import argparse
import os
import pickle
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(path) for path in (ROOT, ROOT / "launcher", ROOT / "telemetry", ROOT / "benchmarks")]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from _table import machine, quantile, table  # noqa: E402 - found by the lines above

import nvrx_async  # noqa: E402 - see above
from nvrx_async.ranklink.messages import PAGE_VARIABLE  # noqa: E402 - see above
from nvrx_async.ranklink.page import Page  # noqa: E402 - see above

BACK_TO_BACK, PACED, PAUSE_S = 20_000, 300, 0.01

RANK = """
import nvrx_async, time
with nvrx_async.connect() as rank:
    for step in range(1_000_000):
        time.sleep(0.1)
        rank.progress(step=step)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the agent is observed")
    arguments = parser.parse_args()
    print(machine())
    in_the_training_thread()
    in_the_agent(arguments.seconds)


# The training thread -------------------------------------------------------------------------------------------


def in_the_training_thread() -> None:
    rows = [row("clock read (floor)", time.monotonic_ns)]
    page = Page.create(0, 0)
    os.environ[PAGE_VARIABLE] = page.path
    with nvrx_async.connect() as rank:
        rows += [
            row("ours: heartbeat()", rank.heartbeat),
            row("ours: progress()", lambda: rank.progress(step=7)),
            row("ours: should_stop()", lambda: rank.should_stop(7)),
        ]
    page.close()
    rows.append(socket_client())
    rows += nvidia()
    head = ("in the training thread", "back to back, µs", "paced, median µs", "paced, p99 µs")
    print(table(head, rows))


def row(name: str, call: Callable[[], object]) -> tuple[str, str, str, str]:
    begun = time.perf_counter()
    for _ in range(BACK_TO_BACK):
        call()
    each = (time.perf_counter() - begun) / BACK_TO_BACK
    paced = []
    for _ in range(PACED):
        time.sleep(PAUSE_S)
        begun = time.perf_counter()
        call()
        paced.append(time.perf_counter() - begun)
    return (
        name,
        f"{each * 1e6:.2f}",
        f"{statistics.median(paced) * 1e6:.2f}",
        f"{quantile(paced, 0.99) * 1e6:.2f}",
    )


def socket_client() -> tuple[str, str, str, str]:
    """A frame of a pickled message into a socket that a thread reads: what a beat costs by the usual way."""
    ours, theirs = socket.socketpair()

    def read() -> None:
        while theirs.recv(1 << 16):
            pass

    reader = threading.Thread(target=read)
    reader.start()

    def beat() -> None:
        body = pickle.dumps({"rank": 3, "state": {}})
        ours.sendall(len(body).to_bytes(4, "big") + body)

    try:
        return row("pickle and sendall", beat)
    finally:
        ours.close()
        reader.join()
        theirs.close()


def nvidia() -> list[tuple[str, str, str, str]]:
    """The incumbent's client needs its monitor process; without the package there is nothing to compare."""
    try:
        import nvidia_resiliency_ext  # noqa: F401, PLC0415 - only whether it is there
    except ImportError:
        return [("NVIDIA's client", "not installed", "-", "-")]
    return [("NVIDIA's client", "installed; its monitor is started by ft_launcher: measure there", "-", "-")]


# The agent ---------------------------------------------------------------------------------------------------------


def in_the_agent(seconds: float) -> None:
    """CPU time of the agent with eight ranks that report ten times a second, and without detection."""
    with tempfile.TemporaryDirectory() as name:
        rows = [(text, f"{cpu_share(Path(name), seconds, *options):.3f} %") for text, options in CASES]
    print(table(("agent, 8 ranks at 10 reports/s", "of a core"), rows))


CASES = (
    ("hang detection (--hang-timeout 600)", ("--hang-timeout", "600")),
    ("without (--hang-timeout off)", ("--hang-timeout", "off")),
)


def cpu_share(folder: Path, seconds: float, *options: str) -> float:
    script = folder / "rank.py"
    script.write_text(RANK, encoding="utf-8")
    common = ("--standalone", "--nproc-per-node", "8", "--log-dir", str(folder), "--warm-workers", "off")
    command = [sys.executable, "-m", "nvrx_launcher", *common, *options, str(script)]
    agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert agent.stderr is not None
        for line in agent.stderr:
            if "round 0 runs" in line:
                break
        time.sleep(3)  # ranks import and connect
        before = cpu_s(agent.pid)
        time.sleep(seconds)
        return 100 * (cpu_s(agent.pid) - before) / seconds
    finally:
        agent.terminate()
        agent.wait()
        agent.stderr.close()  # type: ignore[union-attr] # it was piped above


def cpu_s(pid: int) -> float:
    """In nanosecond steps (proc_pid_schedstat): ticks of 10 ms are too coarse here."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9


if __name__ == "__main__":
    main()
