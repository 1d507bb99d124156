"""A script without torch: says which rank it is and exits. What `nvrx-launch` starts need be no training.

nvrx-launch --standalone --nproc-per-node 2 examples/plain.py
"""

import os

print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
