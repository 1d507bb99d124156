"""How surely a hang is found, explained and restarted: 4 ranks on 2 agents, gloo; `make repeat-hangs`.

    python tests/e2e/repeat_hangs.py [--times N] [--kinds KIND …]

For each kind one job in which a rank hangs in each of its first N rounds, seeded. Prints a row a kind: how often it was
found, its culprit named right, the round restarted; the delay after the deadline; the machine's load. What went
wrong is printed in full; the exit code is 1 if anything did, but not for delays.

On a machine so busy that a rank takes 12 s to import torch a healthy one is late with its start, too, and named: give
`--startup 25` there.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PATHS = [str(path) for path in (ROOT, ROOT / "launcher", ROOT / "telemetry", TESTS)]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from support.etcd_server import etcd_process  # noqa: E402 - found by the lines above
from support.hang_runs import Row, repeated  # noqa: E402 - see above
from support.hanging_training import BESIDES, HANGS  # noqa: E402 - see above
from support.stage import stage  # noqa: E402 - see above

AT_ONCE_S = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description="Hang ranks again and again; count what is found.")
    parser.add_argument("--times", type=int, default=20, help="hangs of each kind (default 20)")
    parser.add_argument("--kinds", nargs="+", default=HANGS, choices=HANGS + BESIDES, metavar="KIND")
    parser.add_argument("--timeout", type=float, default=3.0, help="--hang-timeout of the jobs (default 3)")
    parser.add_argument("--startup", type=float, default=12.0, help="--hang-startup-timeout (default 12)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is cleaned up
    head = ("hang", "found", "culprit", "restarted", "delay", "longest", "≤ 0.1 s", "load")
    print("{:<12}{:<11}{:<11}{:<11}{:<9}{:<9}{:<9}{}".format(*head), flush=True)
    failed = False
    with etcd_process() as server:
        for kind in arguments.kinds:
            with stage(server.endpoint) as made:
                row = repeated(made, kind, arguments.times, arguments.timeout, arguments.startup)
            print(shown(kind, row, arguments.times), flush=True)
            for text in row.wrong:
                print(text, file=sys.stderr, flush=True)
            failed = failed or bool(row.wrong)
    return 1 if failed else 0


def shown(kind: str, row: Row, times: int) -> str:
    late = row.late_s or [float("nan")]
    in_time = sum(one <= AT_ONCE_S for one in row.late_s)
    counts = "".join(f"{f'{count} of {times}':<11}" for count in (row.found, row.named, row.restarted))
    return (
        f"{kind:<12}{counts}{statistics.median(late):<9.3f}{max(late):<9.3f}"
        f"{f'{in_time} of {len(row.late_s)}':<9}{os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
