"""What telemetry costs: a beat, a step and a restart with it off and on; and what a slow collector does to a job.

`python benchmarks/telemetry.py [--launches N] [--pairs N] [--calls N] [--warm] [--torch] [--jitter-s S]`. Jobs with
and without telemetry run side by side and do the same by turns, one at a time; their pairs are compared by CPU time,
which other programs on the machine do not add to. A second job without telemetry shows how much of a difference means
nothing.
On means: spans and metrics go to a collector in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from _pairs import difference
from _table import machine, quantile, table

ROOT = Path(__file__).resolve().parents[1]
RANK, AGENT = (str(Path(__file__).with_name(f"_telemetry_{what}.py")) for what in ("rank", "agent"))
OWN, TIMERS = "NVRX_BENCH_OWN", "NVRX_BENCH_TIMERS"
OFF, AGAIN, ON = "off", "off again", "on"
ANSWER_LIMIT_S = 60.0
SETTLE_S = 9.0
"""Until all is loaded that is loaded once a job."""
AFTER_S = 1.2
"""So long after a fault all is sent that it gave rise to."""
SLOW_S = 10.0
MS = 1e-6


@dataclass(frozen=True, slots=True)
class Start:
    """How ranks of a restart start: from a warm worker, and what they import, "" for nothing."""

    warm: bool = False
    imports: str = ""


class Job:
    """A job of one rank that does what it is asked. `endpoint` None: without telemetry. `watched`: OWN or TIMERS."""

    def __init__(self, folder: Path, endpoint: str | None, *, how: Start, watched: str = "") -> None:
        folder.mkdir()
        self._clocks = folder / "clocks"
        for name in ("in", "out"):
            os.mkfifo(folder / name)
        self._in, self._out = (os.open(folder / name, os.O_RDWR) for name in ("in", "out"))
        self._partial = b""
        path = os.pathsep.join(str(ROOT / part) for part in ("", "launcher", "telemetry"))
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OTEL_", "NVRX_", "PYTHON"))
        }
        self._process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    AGENT,
                    str(self._clocks),
                    "--standalone",
                    "--log-dir",
                    str(folder / "logs"),
                ),
                *("--max-restarts", "10000", "--startup-grace", "0", "--hang-timeout", "off"),
                *(
                    ("--warm-workers", "1", "--warm-imports", how.imports or "json")
                    if how.warm
                    else ("--warm-workers", "off")
                ),
                *(("--otlp-endpoint", endpoint) if endpoint else ()),
                *(RANK, str(folder), *([how.imports] if how.imports else [])),
            ],
            env={**kept, "PYTHONPATH": path, **({watched: "1"} if watched else {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        self.first = self.answer()

    @property
    def cpu_ns(self) -> int:
        """CPU time of the agent."""
        return time.clock_gettime_ns((~self._process.pid << 3) | 2)

    def ask(self, words: str) -> None:
        """Order something."""
        os.write(self._in, f"{words}\n".encode())

    def answer(self) -> dict[str, Any]:
        """Wait for the next line."""
        while b"\n" not in self._partial:
            ready, _, _ = select.select([self._out], [], [], ANSWER_LIMIT_S)
            if not ready:
                raise SystemExit("a rank does not answer")
            self._partial += os.read(self._out, 1 << 20)
        line, _, self._partial = self._partial.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def restart(self) -> dict[str, float]:
        """One restart, from the instant of the fault until the first step; milliseconds."""
        self.ask("fail")
        before, after = self.answer(), self.answer()
        reached_ns = after["agent_ns"]
        time.sleep(AFTER_S)
        return {
            "wall": (after["at_ns"] - before["at_ns"]) * MS,
            "loop": (after["loop_ns"] - before["loop_ns"]) * MS,
            "agent": (after["agent_ns"] - before["agent_ns"]) * MS,
            "rank": after["rank_ns"] * MS,
            "later": (self.cpu_ns - reached_ns) * MS,
        }

    def end(self) -> dict[str, Any]:
        """Finish; when the agent renewed its lease, how late its timers were, what telemetry used of its loop."""
        self.ask("end")
        self._process.wait(ANSWER_LIMIT_S)
        for descriptor in (self._in, self._out):
            os.close(descriptor)
        told: dict[str, Any] = json.loads(self._clocks.read_text())
        return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=12, help="restarts of each job, a launch")
    parser.add_argument("--blocks", type=int, default=60, help="blocks of calls of each job, a launch")
    parser.add_argument("--calls", type=int, default=2000, help="beats and steps a block")
    parser.add_argument("--warm", action="store_true", help="restart with warm workers")
    parser.add_argument("--torch", action="store_true", help="ranks that import torch first")
    parser.add_argument("--jitter-s", type=float, default=60.0, help="0: leave that part out")
    arguments = parser.parse_args()
    arguments.how = Start(arguments.warm, "torch" if arguments.torch else "")
    print(machine(), end="\n\n", flush=True)
    with collector() as endpoint:
        costs(arguments, endpoint)
    if arguments.jitter_s:
        jitter(arguments.jitter_s)


def costs(arguments: argparse.Namespace, endpoint: str) -> None:
    found: dict[str, list[dict[str, list[float]]]] = {}
    for launch in range(arguments.launches):
        with tempfile.TemporaryDirectory() as name:
            arms = {OFF: None, ON: endpoint, AGAIN: None}
            jobs = {arm: Job(Path(name, arm), where, how=arguments.how) for arm, where in arms.items()}
            time.sleep(SETTLE_S if arguments.pairs else 0)
            for metric, of_arms in one_launch(jobs, arguments, launch).items():
                found.setdefault(metric, []).append(of_arms)
            for job in jobs.values():
                job.end()
    rows, wall = [], None
    for metric, (label, digits, whole) in METRICS.items():
        for arm in (ON, AGAIN):
            pairs = [list(zip(one[OFF], one[arm], strict=True)) for one in found[metric]]
            if not any(pairs):
                continue
            compared = difference(pairs)
            wall = compared.base if metric == "wall" else wall
            rows.append([label, arm, *compared.shown(digits, wall if whole else None)])
    print(table(["", "compared with off", "off", "other", "difference (95 %)", "in per cent"], rows))
    print("\nPer cent of CPU times of an agent are those of the restart's whole time.", flush=True)
    if arguments.pairs and wall:
        spent_ms = own_calls(endpoint, arguments.pairs, how=arguments.how)
        print(
            f"In the telemetry's own calls the agent's loop spent {spent_ms:.3f} ms of CPU a restart, "
            f"{spent_ms / wall:.2%} of it, counting included.\n",
            flush=True,
        )


def own_calls(endpoint: str, restarts: int, *, how: Start) -> float:
    """CPU time of the loop in calls of the telemetry in each restart, in milliseconds: what no other noise adds to."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(Path(name, "own"), endpoint, how=how, watched=OWN)
        for _ in range(restarts):
            job.restart()
        spent_ns: int = job.end()["own_ns"]
    return spent_ns * MS / (restarts + 1)  # the first round has most of the same calls


METRICS = {
    "beat": ("a beat, ns of CPU", 1, False),
    "step": ("an empty step, ns of CPU", 1, False),
    "wall": ("a restart, ms", 2, False),
    "loop": ("… the agent's loop, ms of CPU", 3, True),
    "agent": ("… the whole agent, ms of CPU", 3, True),
    "rank": ("… the rank until its first step, ms of CPU", 3, False),
    "later": ("the agent in the second after, ms of CPU", 3, True),
}


def one_launch(
    jobs: dict[str, Job], arguments: argparse.Namespace, launch: int
) -> dict[str, dict[str, list[float]]]:
    """All that is measured of one set of jobs: by metric and job, in pairs."""
    found: dict[str, dict[str, list[float]]] = {metric: {arm: [] for arm in jobs} for metric in METRICS}

    def note(arm: str, measured: dict[str, float]) -> None:
        for metric, value in measured.items():
            found[metric][arm].append(value)

    for turn in range(arguments.blocks):
        for arm in in_turn(jobs, turn + launch):
            jobs[arm].ask(f"calls {arguments.calls}")
            note(arm, jobs[arm].answer())
    for job in jobs.values() if arguments.pairs else ():
        job.restart()  # the first one loads what the others have
    for turn in range(arguments.pairs):
        for arm in in_turn(jobs, turn + launch):
            note(arm, jobs[arm].restart())
    return found


def in_turn(jobs: dict[str, Job], turn: int) -> list[str]:
    """Each arm comes first, second and last as often as the others, forwards and backwards."""
    names = list(jobs)
    shift = turn // 2 % len(names)
    order = names[shift:] + names[:shift]
    return order if turn % 2 == 0 else order[::-1]


def jitter(length_s: float) -> None:
    """All at once, so that whatever else the machine does happens to all: how late beats and timers are."""
    rows = []
    with ExitStack() as stack:
        arms = {
            OFF: None,
            "on": stack.enter_context(collector()),
            f"answers after {SLOW_S:g} s": stack.enter_context(collector(SLOW_S)),
            "dead": "http://127.0.0.1:9",
        }
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        jobs = {
            arm: Job(folder / str(place), where, how=Start(), watched=TIMERS)
            for place, (arm, where) in enumerate(arms.items())
        }
        late: dict[str, list[float]] = {arm: [] for arm in jobs}
        parts = max(2, round(length_s / 10))
        for part in range(parts):
            for job in jobs.values():
                job.ask(f"train {round(length_s / parts * 100)}")
            for arm, job in jobs.items():
                late[arm] += job.answer()["late_s"]
            if part < parts - 1:
                for job in jobs.values():
                    job.restart()  # there is always something to send
        for arm, job in jobs.items():
            clocks = job.end()
            gaps = [
                after - before for before, after in zip(clocks["sent_s"], clocks["sent_s"][1:], strict=False)
            ]
            rows.append([arm, *lateness(late[arm]), *lateness(clocks["late_s"]), f"{max(gaps):.2f}"])
    head = ["collector", "beat late, p99 ms", "p99.9", "max", "agent's timers late, p99 ms", "p99.9", "max"]
    print(table([*head, "longest between renewals, s"], rows))


def lateness(values: list[float]) -> list[str]:
    return [f"{quantile(values, q) * 1000:.1f}" for q in (0.99, 0.999, 1.0)]


@contextmanager
def collector(answers_after_s: float = 0.0) -> Iterator[str]:
    """Takes everything, when it likes to."""
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            closing.wait(answers_after_s)
            try:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:  # the exporter gave up
                return

        def log_message(self, *_: object) -> None:
            """Nothing is shown."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    began_s = time.monotonic()
    main()
    print(f"\n{time.monotonic() - began_s:.0f} s")
