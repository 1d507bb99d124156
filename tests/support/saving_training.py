"""A training with gloo in which rank 0 saves once while all others wait for it in a barrier.

`saving_training.py SECONDS LIMIT_S`: in round 0 the save takes so long; later rounds save at once.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

import nvrx_async

SAVE_STEP, STEPS = 12, 20


def main() -> None:
    seconds, limit_s = float(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    with nvrx_async.connect() as rank:
        dist.init_process_group("gloo")
        rank.ready()
        for step in rank.steps(STEPS):
            dist.all_reduce(torch.full((64,), float(step)))
            if step == SAVE_STEP:
                if rank.rank == 0:
                    with rank.section("save", limit_s=limit_s):
                        time.sleep(seconds if os.environ["NVRX_ROUND"] == "0" else 0.0)
                dist.barrier()
    dist.destroy_process_group()
    print(f"finished round {rank.round}", flush=True)


if __name__ == "__main__":
    main()
