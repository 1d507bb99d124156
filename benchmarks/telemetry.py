"""What telemetry costs: a beat, a step and a restart with it off and on, in turns on the same machine.

`python benchmarks/telemetry.py [--restarts N] [--turns N]`. On means: spans and metrics go to a collector in this
process, which takes them and does nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from _table import machine, table

ROOT = Path(__file__).resolve().parents[1]
CALLS = 200_000
STEPS_BEFORE_THE_FAULT = 5

LOOP = """
import time, sys, nvrx_async
calls = int(sys.argv[1])
with nvrx_async.connect() as rank:
    rank.progress(step=0); rank.progress(step=1); rank.progress(step=2)
    best = {"beat": 9e9, "step": 9e9}
    for _ in range(15):
        began = time.perf_counter_ns()
        for _ in range(calls):
            rank.heartbeat()
        best["beat"] = min(best["beat"], (time.perf_counter_ns() - began) / calls)
        began = time.perf_counter_ns()
        for step in rank.steps(calls):
            pass
        best["step"] = min(best["step"], (time.perf_counter_ns() - began) / calls)
open(sys.argv[2], "w").write(f"{best['beat']} {best['step']}")
"""

RESTARTS = """
import os, sys, time, nvrx_async
folder, last = sys.argv[1], int(sys.argv[2])
with nvrx_async.connect() as rank:
    for step in rank.steps(1_000_000):
        if step == 0:
            open(f"{folder}/{rank.round}.first", "w").write(str(time.monotonic()))
        time.sleep(0.01)
        if step == 5:
            break
    # The first round is as long as what is loaded once a job, the others as what is sent after a fault.
    time.sleep(8 if rank.round == 0 else 1)
    if rank.round < last:
        open(f"{folder}/{rank.round}.fault", "w").write(str(time.monotonic()))
        os._exit(1)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=15)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--calls", type=int, default=CALLS)
    arguments = parser.parse_args()
    found: dict[str, dict[bool, list[float]]] = {
        name: {False: [], True: []} for name in ("beat, ns", "step, ns", "restart, ms", "agent's CPU, s")
    }
    with collector() as endpoint:
        for turn in range(arguments.turns):
            for on in (False, True) if turn % 2 == 0 else (True, False):
                beat, step = calls(endpoint if on else None, arguments.calls)
                found["beat, ns"][on].append(beat)
                found["step, ns"][on].append(step)
                took, cpu_s = restarts(endpoint if on else None, arguments.restarts)
                found["restart, ms"][on] += took
                found["agent's CPU, s"][on].append(cpu_s)
    rows = []
    for name, by_state in found.items():
        off, on = by_state[False], by_state[True]
        middle = statistics.median(on) / statistics.median(off) - 1
        best = min(on) / min(off) - 1
        cells = (statistics.median(off), statistics.median(on), min(off), min(on))
        rows.append([name, *(f"{cell:.2f}" for cell in cells), f"{middle:+.1%}", f"{best:+.1%}"])
    loading = (
        "import resource, opentelemetry.exporter.otlp.proto.http.trace_exporter, opentelemetry.sdk.metrics; "
        "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"
    )
    loaded = subprocess.run([sys.executable, "-c", loading], capture_output=True, text=True, check=True)
    bare = loading.replace(
        ", opentelemetry.exporter.otlp.proto.http.trace_exporter, opentelemetry.sdk.metrics", ""
    )
    started = subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, check=True)
    print(f"loading the SDK, once an agent: {float(loaded.stdout) - float(started.stdout):.2f} s of CPU\n")
    print(machine(), end="\n\n")
    print(table(["", "off, median", "on, median", "off, best", "on, best", "median", "best"], rows))


def calls(endpoint: str | None, count: int) -> tuple[float, float]:
    """Nanoseconds of a beat and of an empty step, the best of 15 loops."""
    with tempfile.TemporaryDirectory() as folder:
        launch(folder, endpoint, LOOP, str(count), f"{folder}/out")
        beat, step = Path(folder, "out").read_text().split()
    return float(beat), float(step)


def restarts(endpoint: str | None, count: int) -> tuple[list[float], float]:
    """Milliseconds of restarts, from the instant of the fault to the first step, and the agent's CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        cpu_s = launch(folder, endpoint, RESTARTS, folder, str(count), restarts=count)
        took = []
        for number in range(count):
            fault_s, first_s = (
                float(Path(folder, name).read_text()) for name in (f"{number}.fault", f"{number + 1}.first")
            )
            took.append((first_s - fault_s) * 1000)
    return took, cpu_s


def launch(folder: str, endpoint: str | None, program: str, *words: str, restarts: int = 0) -> float:
    """Run a program under an agent; returns user and system seconds of the agent itself, by its own account."""
    script = Path(folder, "program.py")
    script.write_text(program)
    path = os.pathsep.join(str(ROOT / part) for part in ("", "launcher", "telemetry"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "NVRX_"))}
    code = (
        "import resource, sys; from nvrx_launcher.launch_cli import main; code = main(sys.argv[2:]); "
        "used = resource.getrusage(resource.RUSAGE_SELF); "
        "open(sys.argv[1], 'w').write(str(used.ru_utime + used.ru_stime)); sys.exit(code)"
    )
    subprocess.run(
        [
            *(sys.executable, "-c", code, f"{folder}/cpu", "--standalone", "--warm-workers", "off"),
            *("--log-dir", f"{folder}/logs", "--max-restarts", str(restarts), "--startup-grace", "0"),
            *(("--otlp-endpoint", endpoint) if endpoint else ()),
            *(str(script), *words),
        ],
        env={**kept, "PYTHONPATH": path},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        timeout=600,
    )
    return float(Path(folder, "cpu").read_text())


@contextmanager
def collector() -> Iterator[str]:
    """Takes everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is shown."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


if __name__ == "__main__":
    began_s = time.monotonic()
    main()
    print(f"{time.monotonic() - began_s:.0f} s")
