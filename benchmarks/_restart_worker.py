"""A rank of the restart benchmark: all-reduces for ever and stamps what it does (CLOCK_MONOTONIC, seconds)."""

import os
import time
from pathlib import Path

START_S = time.monotonic()

import torch  # noqa: E402 - the time before it is measured
import torch.distributed as dist  # noqa: E402

STAMPS = 25
PAUSE_S = 0.01


def main() -> None:
    imported_s = time.monotonic()
    rank = int(os.environ["RANK"])
    with Path(os.environ["BENCH_FOLDER"], f"{rank}-{os.getpid()}").open("w", buffering=1) as file:
        print(f"start {START_S}\nimported {imported_s}", file=file)
        dist.init_process_group("gloo")
        print(f"group {time.monotonic()}", file=file)
        value = torch.ones(1024)
        step = 0
        while True:
            dist.all_reduce(value)
            value /= dist.get_world_size()
            if step < STAMPS:
                print(f"step {time.monotonic()}", file=file)
            step += 1
            time.sleep(PAUSE_S)


main()
