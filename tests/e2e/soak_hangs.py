"""A healthy job that must raise no alarm, on a machine at load 8 whose wall clock jumps: `make soak-hangs`.

    python tests/e2e/soak_hangs.py [--minutes M] [--burners N] [--nice N]

4 ranks on 2 agents with gloo; see `noisy_training`. `--hang-timeout` is tight (45 s: a first step takes 30 s, an
evaluation 20 s). Prints what was seen; the exit code is 1 if anything was called hung or suspect.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PATHS = [str(path) for path in (ROOT, ROOT / "launcher", ROOT / "telemetry", TESTS)]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from support.clock_step import SteppedClock  # noqa: E402 - found by the lines above
from support.etcd_server import etcd_process  # noqa: E402 - see above
from support.stage import Stage, stage  # noqa: E402 - see above

PROGRAM = TESTS / "support" / "noisy_training.py"
OPTIONS = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3")
LIMITS = ("--hang-timeout", "45", "--hang-startup-timeout", "90")
STEPS_OF_CLOCK_S = (3600, -3600, 0, 86400, 0)
LEFT_S = 240.0
"""What a save, an evaluation and the end may take beyond the minutes."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Train without a fault and look for false alarms.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--burners", type=int, default=8, help="processes that use a core each (default 8)")
    parser.add_argument("--nice", type=int, default=0, help="niceness of the burners (default 0)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is cleaned up
    with etcd_process() as server, stage(server.endpoint) as on, burners(arguments.burners, arguments.nice):
        return watch(on, arguments.minutes * 60)


def watch(on: Stage, seconds: float) -> int:
    """Run the job, move its clock now and then, and judge what it said."""
    clock = SteppedClock(on.folder)
    agents = [
        on.launch(
            str(PROGRAM),
            str(seconds),
            node=f"n{number}",
            options=(*OPTIONS, *LIMITS),
            environment={"OMP_NUM_THREADS": "1", **clock.environment},
        )
        for number in range(2)
    ]
    end_s, loads = time.monotonic() + seconds + LEFT_S, []
    turn = 0
    while any(agent.process.alive for agent in agents) and time.monotonic() < end_s:
        on.for_a_while(min(20.0, seconds / 10))
        loads.append(os.getloadavg()[0])
        clock.step_to(STEPS_OF_CLOCK_S[turn % len(STEPS_OF_CLOCK_S)])
        turn += 1
    ended = [agent.ends(bound_s=60) for agent in agents]
    told = "\n".join(agent.text for agent in agents)
    alarms = [line for line in told.splitlines() if re.search(r"\b(hang|hangs|hung)\b", line)]
    number = on.held()["0/round"].value["number"]
    result = re.search(r"trained (\d+) steps; the clock jumped (\d+) times", told)
    print(f"{result[0] if result else 'the training did not end'}; exit codes {ended}, round {number}")
    print(f"load {min(loads):.1f} to {max(loads):.1f}; alarms: {len(alarms)}", flush=True)
    good = not alarms and ended == [0, 0] and number == 0 and result is not None and int(result[2]) > 0
    if not good:
        print(told[-8000:], file=sys.stderr)
    return 0 if good else 1


@contextmanager
def burners(count: int, niceness: int) -> Iterator[None]:
    """Keep this many processes busy."""
    command = ["nice", "-n", str(niceness), sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


if __name__ == "__main__":
    sys.exit(main())
