"""A rank without torch, which starts in 30 ms. It tells the stage what it does and can be made to fail.

Every line of news is one write below PIPE_BUF into the stage's FIFO, so lines of many ranks never mix.
Started by `nvrx-launch … rank_program.py NEWS [options]`; without options it waits for SIGUSR1 and exits 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path


class AskedToFailError(Exception):
    """Raised by `--fail raise`."""


def main() -> None:
    arguments = parse_arguments()
    number, rank = int(os.environ["NVRX_ROUND"]), int(os.environ["RANK"])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, *([signal.SIGTERM] if arguments.saves else [])})
    for line in range(arguments.lines):
        print(f"line {line} of rank {rank}: {'x' * 40}")
    if arguments.offspring:
        leave_a_grandchild(arguments.news)
    tell(arguments.news, "up")
    if rank == arguments.fail_rank and (number == 0 or arguments.fail_always):
        fail(arguments.fail)
    if number >= arguments.finish_from:
        return
    awaited = {signal.SIGUSR1, *([signal.SIGTERM] if arguments.saves else [])}
    if signal.sigwait(awaited) == signal.SIGTERM:
        tell(arguments.news, "saved")


def fail(kind: str) -> None:
    match kind:
        case "exit":
            os._exit(1)
        case "raise":
            raise AskedToFailError("the shards are all gone")
        case "sigkill" | "segfault":
            os.kill(os.getpid(), signal.SIGKILL if kind == "sigkill" else signal.SIGSEGV)
            signal.pause()


def leave_a_grandchild(news: Path) -> None:
    """A process of another session whose parent is dead: what a loader or a daemon of a training can leave."""
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        tell(news, "grandchild")
        os.close(tells)
        while True:
            signal.pause()
    os.close(tells)
    os.waitpid(child, 0)
    os.read(told, 1)
    os.close(told)


def tell(news: Path, word: str) -> None:
    line = {
        "word": word,
        "pid": os.getpid(),
        "rank": int(os.environ["RANK"]),
        "round": int(os.environ["NVRX_ROUND"]),
        "attempt": int(os.environ["NVRX_ATTEMPT"]),
        "node": os.environ["NVRX_NODE_ID"],
        "group_rank": int(os.environ["GROUP_RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
        "run_id": os.environ["NVRX_RUN_ID"],
    }
    with news.open("ab", buffering=0) as pipe:
        pipe.write(json.dumps(line).encode() + b"\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("news", type=Path)
    parser.add_argument("--fail", choices=["exit", "raise", "sigkill", "segfault"])
    parser.add_argument("--fail-rank", type=int, default=-1)
    parser.add_argument("--fail-always", action="store_true", help="in every round, not in the first only")
    parser.add_argument("--finish-from", type=int, default=1 << 30, help="exit 0 at once from this round on")
    parser.add_argument("--saves", action="store_true", help="on SIGTERM tell of it and exit 0")
    parser.add_argument("--offspring", action="store_true", help="leave a double-forked grandchild")
    parser.add_argument("--lines", type=int, default=0, help="lines to print first")
    return parser.parse_args()


if __name__ == "__main__":
    main()
