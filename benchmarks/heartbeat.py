"""What a report costs the training thread and the agent.

    python benchmarks/heartbeat.py [--seconds S] [--peer FOLDER]

Compared with a plain floor (a clock read), with a blocking socket client of the shape that most monitors have (length +
pickle, `sendall`), and with NVIDIA's client and its own monitor where that package is installed, in this environment or
in FOLDER (`pip install --target FOLDER nvidia-resiliency-ext`). Figures are printed, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(path) for path in (ROOT, ROOT / "launcher", ROOT / "telemetry", ROOT / "benchmarks")]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from _calls import Cost, cost  # noqa: E402 - found by the lines above
from _table import machine, table  # noqa: E402 - see above

import nvrx_async  # noqa: E402 - see above
from nvrx_async.ranklink.messages import PAGE_VARIABLE  # noqa: E402 - see above
from nvrx_async.ranklink.page import Page  # noqa: E402 - see above
from nvrx_async.ranklink.rank import Rank  # noqa: E402 - see above

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
    parser.add_argument("--peer", default="", help="folder that holds nvidia-resiliency-ext")
    arguments = parser.parse_args()
    print(machine())
    in_the_training_thread(arguments.peer)
    in_the_agent(arguments.seconds)


# The training thread -------------------------------------------------------------------------------------------


def in_the_training_thread(peer: str) -> None:
    rows = [("clock read (floor)", *cost(time.monotonic_ns).shown)]
    page = Page.create(0, 0)
    os.environ[PAGE_VARIABLE] = page.path
    with nvrx_async.connect() as rank:
        ours = cost(rank.heartbeat)
        rows += [
            ("ours: heartbeat()", *ours.shown),
            ("ours: progress()", *cost(lambda: rank.progress(step=7)).shown),
            ("ours: section()", *cost(lambda: _section(rank)).shown),
            ("ours: should_stop()", *cost(lambda: rank.should_stop(7)).shown),
        ]
    page.close()
    rows.append(("pickle and sendall", *socket_client().shown))
    theirs = nvidia(peer)
    version = f" {theirs[2]}" if theirs else ""
    rows.append((f"NVIDIA's client{version}: send_heartbeat()", *(theirs[0].shown if theirs else "---")))
    head = ("in the training thread", "back to back, µs", "paced, median µs", "paced, p99 µs")
    print(table(head, rows))
    if theirs is None:
        print("NVIDIA's client is not installed: pip install nvidia-resiliency-ext, or --peer FOLDER")
        return
    them, beats, _ = theirs
    print(
        f"ours is {ours.back_to_back_us / them.back_to_back_us:.3f} of theirs back to back, "
        f"{ours.paced_us / them.paced_us:.3f} paced; with a stopped monitor theirs blocks after {beats} beats"
    )


def _section(rank: Rank) -> None:
    with rank.section("save"):
        pass


def socket_client() -> Cost:
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
        return cost(beat)
    finally:
        ours.close()
        reader.join()
        theirs.close()


def nvidia(peer: str) -> tuple[Cost, int, str] | None:
    """The incumbent's client with its own monitor, how many beats a stopped one takes, its version; None without it."""
    paths = [*filter(None, [peer]), *PATHS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    known = "import importlib.util, sys; sys.exit(importlib.util.find_spec('nvidia_resiliency_ext') is None)"
    if subprocess.run([sys.executable, "-c", known], env=environment, check=False).returncode:
        return None
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "_nvidia_client.py")],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return (
        Cost(found["back_to_back_us"], found["paced_us"], found["paced_p99_us"]),
        found["beats"],
        found["version"],
    )


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
