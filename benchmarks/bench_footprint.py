"""What the launcher costs: start-up, memory, processor time and requests to etcd of a job that just runs.

    python benchmarks/bench_footprint.py [--seconds S]

Eight ranks that sleep, one agent, an etcd of its own. Figures are printed, not judged.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(path) for path in (ROOT, ROOT / "launcher", ROOT / "telemetry", ROOT / "tests")]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from support import footprint  # noqa: E402 - found by the lines above
from support.etcd_server import etcd_process  # noqa: E402 - see above
from support.etcd_view import PROPOSALS, EtcdView  # noqa: E402 - see above
from support.stage import stage  # noqa: E402 - see above

HELP = [sys.executable, "-m", "nvrx_launcher", "--help"]
LOADED = (
    "import contextlib, io, sys; before = set(sys.modules)\n"
    "from nvrx_launcher.launch_cli import main\n"
    "with contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
    "print(*sorted({name.partition('.')[0] for name in sys.modules.keys() - before}))\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the running job is observed")
    arguments = parser.parse_args()
    start_up()
    running(arguments.seconds)


def start_up() -> None:
    times_ms = []
    for _ in range(21):
        begun = time.perf_counter()
        subprocess.run(HELP, stdout=subprocess.DEVNULL, check=True)
        times_ms.append((time.perf_counter() - begun) * 1000)
    bare = min(_bare_ms() for _ in range(5))
    show(
        "nvrx-launch --help",
        f"{statistics.median(times_ms):.0f} ms (median of {len(times_ms)}; bare Python {bare:.0f} ms)",
    )
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    show("modules --help loads", f"{len(loaded.stdout.split())}: {loaded.stdout.strip()}")


def _bare_ms() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return (time.perf_counter() - begun) * 1000


def running(seconds: float) -> None:
    with etcd_process() as server, stage(server.endpoint) as job:
        agent = job.launch(options=("--nproc-per-node", "8"))
        ranks = job.up(0, 8)
        parts = {"agent": agent.pid, "keeper": agent.keeper()}
        view = EtcdView(server.endpoint)
        job.for_a_while(1.0)
        cpu_before = {name: footprint.cpu_s(pid) for name, pid in parts.items()}
        heard, proposals = view.messages(), view.metric(PROPOSALS)
        job.for_a_while(seconds)
        for name, pid in parts.items():
            used = (footprint.cpu_s(pid) - cpu_before[name]) / seconds
            rss, pss = footprint.rss_bytes(pid) / 1e6, footprint.pss_bytes(pid) / 1e6
            show(name, f"RSS {rss:.1f} MB, PSS {pss:.1f} MB, processor {used:.2%}")
        asked = {name: number for name, number in (view.messages() - heard).items() if number}
        each = ", ".join(f"{name} {number * 60 / seconds:.0f}" for name, number in asked.items())
        show("messages to etcd a minute", each or "none")
        show("raft proposals meanwhile", f"{view.metric(PROPOSALS) - proposals:.0f}")
        show(
            "libtorch in the agent",
            "loaded" if any("torch" in one for one in footprint.libraries(agent.pid)) else "no",
        )
        job.finish(ranks)
        agent.ends()


def show(what: str, figure: str) -> None:
    print(f"{what:<28}{figure}", flush=True)


if __name__ == "__main__":
    main()
