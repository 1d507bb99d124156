"""Chaos: `make chaos`. A training on three nodes and a spare, and a random fault every few seconds.

    python tests/e2e/chaos.py [--seconds S] [--seed N]

Nodes are network namespaces of this machine, so root is needed; etcd runs on the nodes. After the last fault the
training must end with the result of a run that nothing happens to; at no time may ranks of two rounds have been at
work; and no process, file in shared memory or socket may be left. What is done is printed; the same seed draws the same
faults.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PATHS = [str(path) for path in (ROOT, ROOT / "launcher", ROOT / "telemetry", TESTS)]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from support import netspaces  # noqa: E402 - found by the lines above
from support.chaos import Chaos, chaos  # noqa: E402 - see above
from support.worlds import after_waking, misled, overlaps, recorded, result  # noqa: E402 - see above

SKIPPED = 77


def main() -> int:
    parser = argparse.ArgumentParser(description="Random faults in a whole job.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults happen (default 600)")
    parser.add_argument("--seed", type=int, help="of all random choices (default: a random one)")
    arguments = parser.parse_args()
    if not netspaces.are_own():
        if not netspaces.possible():
            print("chaos wants to make network namespaces: root, ip and unshare", file=sys.stderr)
            return SKIPPED
        command = netspaces.in_own_namespaces(__file__, *sys.argv[1:])
        os.execvp(command[0], command)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is cleaned up
    seed = random.SystemRandom().randrange(1 << 16) if arguments.seed is None else arguments.seed
    say(f"chaos with seed {seed} for {arguments.seconds:g} s; again: make chaos CHAOS_SEED={seed}")
    failures: list[str] = []
    try:
        with chaos(seed, say) as made:
            try:
                made.begin()
                made.rage(arguments.seconds)
                failures += made.failures
                if not failures:
                    made.calm()
                    failures += made.failures + judged(made)
            except AssertionError as error:
                failures.append(str(error))
            finally:
                failures += at_most_one_world(made)
                if failures:
                    say(f"all that was written is kept in {kept(made)}")
    except AssertionError as error:  # what the stage found to be left
        failures.append(str(error))
    for failure in failures:
        print(f"FAILED: {failure}", flush=True)
    say(f"seed {seed}: {'failed' if failures else 'passed'}")
    return 1 if failures else 0


def judged(made: Chaos) -> list[str]:
    """What is wrong with how it ended."""
    steps, right = result(made.training)
    rounds = {entry.round for entry in recorded(made.training)}
    count = sum(made.done.values())
    say(f"{count} faults of {len(made.done)} kinds, {len(rounds)} rounds, {steps} steps")
    for name, times in sorted(made.done.items()):
        say(f"  {times:3}  {name}")
    found = [] if right else [f"the result after {steps} steps is not that of an undisturbed run"]
    found += misled(made.training, 3)
    found += [f"left: {line}" for line in made.stage.left()]
    found += [f"left: /dev/shm/{name}" for name in os.listdir("/dev/shm")]
    found += [f"left: {path}" for path in (made.stage.folder / "tmp").rglob("*") if not path.is_dir()]
    return found


def at_most_one_world(made: Chaos) -> list[str]:
    entries = recorded(made.training)
    late = after_waking(entries, made.frozen)
    if late:
        say(f"woken with their whole node, ranks of an older round made {len(late)} steps, in vain")
    return [f"two worlds: {line}" for line in overlaps(entries, made.frozen)]


def kept(made: Chaos) -> str:
    folder = Path(tempfile.mkdtemp(prefix="nvrx-chaos-"))
    shutil.copytree(made.stage.folder, folder / "stage", ignore=_unwanted, symlinks=True, dirs_exist_ok=True)
    for agent in made.stage.agents:
        (folder / f"{agent.mark}-{agent.node}.txt").write_text(agent.text)
    return str(folder)


def _unwanted(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name in ("news", "filler") or (Path(folder) / name).is_socket()]


def say(line: str) -> None:
    print(time.strftime("%H:%M:%S "), line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
