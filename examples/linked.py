"""The rank link in its smallest form: steps, a section for saving, an agreed stop. No torch.

`linked.py [STEPS]`: how many steps, 100 unless it is said.
"""

from __future__ import annotations

import sys
import time

import nvrx_async


def main() -> None:
    """Train, so to say."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with nvrx_async.connect() as rank:
        for step in rank.steps(steps):
            time.sleep(0.05)  # the training step
            if step % 25 == 24:
                with rank.section("save"):
                    time.sleep(0.2)
            if rank.should_stop(step):
                print(f"rank {rank.rank} stops at step {step}")
                break
    print(f"rank {rank.rank} of {rank.world_size} finished in round {rank.round}")


if __name__ == "__main__":
    main()
