"""A healthy training with gloo that looks ill: `noisy_training.py SECONDS`, for `soak_hangs.py`.

Steps with noise, a first step of 30 s, an evaluation of 20 s every 50 steps, saves of a minute in a section, a data
loader that is slow now and then on one rank. Rank 0 tells at the end how often it saw the wall clock jump.
"""

from __future__ import annotations

import random
import sys
import time

import torch
import torch.distributed as dist

import nvrx_async

FIRST_S, EVALUATION_S, SAVE_S, SAVE_LIMIT_S, LOADER_S = 30.0, 20.0, 60.0, 150.0, 8.0
EVALUATE_EVERY, SAVE_EVERY = 50, 170
NOISE_S, LONGEST_NOISE_S = 0.15, 3.0
SLOW_LOADER = 1 / 40
JUMP_S = 60.0


def main() -> None:
    end_s = time.monotonic() + float(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    common, jumps = random.Random(4), Jumps()
    with nvrx_async.connect() as rank:
        own = random.Random(rank.rank)
        for step in rank.steps(sys.maxsize):
            slow = common.randrange(rank.world_size) if common.random() < SLOW_LOADER else None
            if slow == rank.rank:
                time.sleep(LOADER_S)
            train(own, first=step == 0)
            if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
                time.sleep(EVALUATION_S)
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                save(rank)
            jumps.look()
            if over(end_s, rank.rank):
                break
    dist.destroy_process_group()
    if rank.rank == 0:
        print(f"trained {step + 1} steps; the clock jumped {jumps.seen} times", flush=True)


class Jumps:
    """Counts steps of the wall clock."""

    def __init__(self) -> None:
        self.seen = 0
        self._apart_s = time.time() - time.monotonic()

    def look(self) -> None:
        apart_s = time.time() - time.monotonic()
        self.seen += abs(apart_s - self._apart_s) > JUMP_S
        self._apart_s = apart_s


def train(own: random.Random, *, first: bool) -> None:
    """Some work, some noise, a collective."""
    weights = torch.rand(200, 200)
    time.sleep(FIRST_S if first else min(own.expovariate(1 / NOISE_S), LONGEST_NOISE_S))
    dist.all_reduce(weights @ weights)


def save(rank) -> None:
    """Rank 0 writes for a minute; all others wait, in the same section."""
    with rank.section("save", limit_s=SAVE_LIMIT_S):
        if rank.rank == 0:
            time.sleep(SAVE_S)
        dist.barrier()


def over(end_s: float, rank: int) -> bool:
    """Whether to stop, as rank 0 says."""
    flag = torch.tensor([float(rank == 0 and time.monotonic() > end_s)])
    dist.all_reduce(flag)
    return bool(flag.item())


if __name__ == "__main__":
    main()
