"""A training with gloo in which one rank hangs in each round, each time another one.

`hanging_training.py KIND CULPRITS`: in round n the n-th of CULPRITS (ranks, separated by commas) hangs by KIND; the
round after the last of them trains to its end. Kinds are those of `HANGS`; those which happen in a step come
from `NVRX_FAULTS`, which `orders` writes.
"""

from __future__ import annotations

import os
import socket
import sys
import time

HANGS = ("python", "sleep", "gil", "sigstop", "collective", "imports", "init", "teardown")
"""What issue reports call them: a loop in Python, a sleep, native code that holds the GIL, a stopped process, a
rank that leaves a collective out, and a rank that gets nowhere in its imports, in `init_process_group`, at its end."""

BESIDES = ("save",)
"""Rank in a section that takes too long while the others wait in a barrier."""

_FAULTS = {"python": "hang", "sleep": "sleep", "gil": "gil", "sigstop": "sigstop", "collective": "skip"}
FAULT_STEP, STEPS = 12, 20
FOREVER_S = 1e6


def orders(kind: str, culprits: list[int]) -> str:
    """Value of `NVRX_FAULTS` for a kind."""
    fault = _FAULTS.get(kind)
    return ";".join(
        f"{fault} rank={rank} round={number} step={FAULT_STEP}"
        for number, rank in enumerate(culprits)
        if fault
    )


def main() -> None:
    kind, culprits = sys.argv[1], [int(rank) for rank in sys.argv[2].split(",")]
    number, me = int(os.environ["NVRX_ROUND"]), int(os.environ["RANK"])
    mine = kind if number < len(culprits) and culprits[number] == me else ""
    if mine == "imports":
        time.sleep(FOREVER_S)
    import torch  # noqa: PLC0415 - a rank may hang before
    import torch.distributed as dist  # noqa: PLC0415 - see above

    import nvrx_async  # noqa: PLC0415 - see above

    torch.set_num_threads(1)
    with nvrx_async.connect() as rank, socket.socket() as deaf:
        if mine == "init":
            lose_the_store(me, deaf, number)
        dist.init_process_group("gloo")
        rank.ready()
        for step in rank.steps(STEPS):
            work = torch.full((64,), float(me + step))
            dist.all_reduce(work)
            if step == FAULT_STEP and kind == "save":
                save(rank, dist, mine)
            if rank.should_stop(step):
                break
        dist.barrier()
    if mine == "teardown":
        time.sleep(FOREVER_S)
    dist.destroy_process_group()
    print(f"finished round {number}", flush=True)


def lose_the_store(me: int, deaf: socket.socket, number: int) -> None:
    """Look for the store at a wrong address: where nobody listens, or where somebody listens and says nothing.

    Rank 0, which serves it, does so where nobody looks.
    """
    deaf.bind(("127.0.0.1", 0))
    port = deaf.getsockname()[1]
    if me == 0:
        deaf.close()
    elif number % 2:
        deaf.listen()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def save(rank, dist, mine: str) -> None:
    """Rank by rank; all wait for the last."""
    if mine:
        with rank.section("save"):
            time.sleep(FOREVER_S)
    dist.barrier()


if __name__ == "__main__":
    main()
