"""A rank that uses the link, without torch: steps with a rendezvous of all ranks by a counter file each.

`linked_program.py FOLDER STEPS`. Every rank writes its step to `FOLDER/<round>.<rank>` and waits until all have
written it: as in a collective, who does not come makes all others wait. What it saved at an agreed stop is in
`FOLDER/saved.<rank>`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nvrx_async


def main() -> None:
    folder, until = Path(sys.argv[1]), int(sys.argv[2])
    hangs = os.environ.get("HANGS", "")  # import, teardown or save, of rank 1 in round 0
    mine = hangs if os.environ["RANK"] == "1" and os.environ["NVRX_ROUND"] == "0" else ""
    if mine == "import":
        time.sleep(1e6)
    with nvrx_async.connect() as rank:
        for step in rank.steps(until):
            if mine == "save" and step == 20:
                with rank.section("save"):
                    time.sleep(1e6)
            all_come(folder, rank, step)
            if rank.should_stop(step):
                (folder / f"saved.{rank.rank}").write_text(str(step))
                break
    if mine == "teardown":
        time.sleep(1e6)
    print(f"finished round {rank.round}", flush=True)


def all_come(folder: Path, rank, step: int) -> None:
    """Wait until every rank has come to this step."""
    own = folder / f"{rank.round}.{rank.rank}"
    with own.with_suffix(f".{rank.rank}.new").open("w") as file:
        file.write(str(step))
    own.with_suffix(f".{rank.rank}.new").replace(own)
    for other in range(rank.world_size):
        while come(folder / f"{rank.round}.{other}") < step:
            time.sleep(0.002)


def come(path: Path) -> int:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return -1


if __name__ == "__main__":
    main()
