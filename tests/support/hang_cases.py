"""Ranks that hang in the ways that users reported: `hang_cases.py CASE`. No torch. See `test_hang_cases.py`."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time

import nvrx_async

BEAT_S, SAVE_LIMIT_S, LIMITS_TRAINED, WORKS_S = 0.05, 1.0, 3, 5.0


def main() -> None:
    case, number = sys.argv[1], int(os.environ["NVRX_ROUND"])
    with nvrx_async.connect() as rank:
        if case == "beats_alone":
            if number == 0:
                beats(rank)
            return
        for step in rank.steps(3):
            rank.should_stop(step)
        if number == 0 and case in CASES:
            CASES[case](rank)
        elif case == "mid_save":
            train_for(rank, LIMITS_TRAINED * SAVE_LIMIT_S)
    if case == "works_on":
        works()
    print(f"finished round {number}", flush=True)


def beats(rank) -> None:
    """The main thread is stuck, another one beats on."""

    def beat() -> None:
        while True:
            rank.heartbeat()
            time.sleep(BEAT_S)

    threading.Thread(target=beat, daemon=True).start()
    threading.Event().wait()


def mid_save(rank) -> None:
    """The process dies with an open section."""
    with rank.section("save", limit_s=SAVE_LIMIT_S):
        os.kill(os.getpid(), signal.SIGKILL)


def both(rank) -> None:
    """Rank 0 in C code that holds the interpreter's lock, all others in a sleep."""
    if rank.rank == 0:
        backtracks()
    sleeps()


def backtracks() -> None:
    re.match("(a+)+$", "a" * 64 + "b")


def sleeps() -> None:
    time.sleep(1e6)


def works() -> None:
    """A last evaluation, of which nobody is told."""
    end_s = time.monotonic() + WORKS_S
    while time.monotonic() < end_s:
        sum(range(1000))


def train_for(rank, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    step = 0
    while time.monotonic() < end_s:
        rank.progress(step=step)
        time.sleep(BEAT_S)
        step += 1


def dies(rank) -> None:
    """Rank 0 is gone, all others stand where nothing tells them: no socket, no time-out of their own."""
    if rank.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    sleeps()


CASES = {"beats": beats, "mid_save": mid_save, "both": both, "dies": dies}

if __name__ == "__main__":
    main()
