"""How often a job survives the death of a rank, of each kind and on one and two agents: `make repeat`.

    python tests/e2e/repeat.py [--plain N] [--training N] [--agents 1 2]

Prints one row a case: how many runs went well of how many, and how long they took. What went wrong is printed in
full, and counted; the exit code is 1 if anything did.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PATHS = [str(path) for path in (ROOT, ROOT / "launcher", ROOT / "telemetry", TESTS)]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from support.etcd_server import etcd_process  # noqa: E402 - found by the lines above
from support.rank_deaths import KINDS, play, train  # noqa: E402 - see above
from support.stage import Stage, stage  # noqa: E402 - see above


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill ranks again and again; count what survives.")
    parser.add_argument("--plain", type=int, default=50, help="runs of a case without torch (default 50)")
    parser.add_argument("--training", type=int, default=10, help="runs of a case of a training (default 10)")
    parser.add_argument(
        "--agents", type=int, nargs="+", default=[1, 2], help="on so many agents (default 1 2)"
    )
    arguments = parser.parse_args()
    failures = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is cleaned up
    with etcd_process() as server:
        print(f"{'ranks':<10}{'death':<10}{'agents':<8}{'good':<12}{'median':<10}longest", flush=True)
        for agents, kind in itertools.product(arguments.agents, KINDS):
            failures += row("plain", agents, kind, arguments.plain, server.endpoint, play)
        undisturbed: dict[int, str] = {}

        def same_result(on: Stage, agents: int, kind: str) -> None:
            result = train(on, agents, kind)
            assert result == undisturbed[agents], f"{result}\nundisturbed {undisturbed[agents]}\n{on.told()}"

        for agents, kind in itertools.product(arguments.agents, KINDS):
            if arguments.training and agents not in undisturbed:
                with stage(server.endpoint) as made:
                    undisturbed[agents] = train(made, agents, None)
            failures += row("gloo", agents, kind, arguments.training, server.endpoint, same_result)
    return 1 if failures else 0


def row(
    name: str, agents: int, kind: str, runs: int, endpoint: str, job: Callable[[Stage, int, str], None]
) -> int:
    """Run one case and print its row; how many runs went wrong."""
    times, good = [], 0
    for _ in range(runs):
        begun = time.monotonic()
        try:
            with stage(endpoint) as made:
                job(made, agents, kind)
        except AssertionError as error:
            print(error, file=sys.stderr, flush=True)
        else:
            good += 1
        times.append(time.monotonic() - begun)
    if runs:
        middle, longest = statistics.median(times), max(times)
        count = f"{good} of {runs}"
        print(f"{name:<10}{kind:<10}{agents:<8}{count:<12}{middle:<10.2f}{longest:.2f}", flush=True)
    return runs - good


if __name__ == "__main__":
    sys.exit(main())
