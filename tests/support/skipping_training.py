"""Two collectives a step, of different sizes: a rank that leaves one out (`NVRX_FAULTS=skip`) is in the wrong one."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import nvrx_async


def main() -> None:
    dist.init_process_group("gloo")
    small, large = torch.ones(4), torch.ones(8)
    with nvrx_async.connect() as rank:
        for _ in rank.steps(int(sys.argv[1])):
            dist.all_reduce(small)
            dist.all_reduce(large)
            small.fill_(1)
            large.fill_(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
