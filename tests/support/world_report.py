"""A rank that writes down its world, says a line on each stream, and exits as it is told.

`world_report.py FOLDER [--exit LOCAL_RANK:CODE] [--raise LOCAL_RANK] [WORDS …]`
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path


def main() -> None:
    folder, *words = sys.argv[1:]
    name = f"{os.environ.get('ROLE_NAME', '')}-{os.environ['RANK']}"
    world = {
        "environment": dict(os.environ),
        "arguments": words,
        "program": sys.argv[0],
        "cwd": str(Path.cwd()),
    }
    world["unbuffered"] = sys.stdout.write_through
    world["main"] = __name__
    (Path(folder) / f"{name}.json").write_text(json.dumps(world))
    print(f"out of {os.environ['RANK']}")
    print(f"err of {os.environ['RANK']}", file=sys.stderr)
    told = dict(itertools.pairwise(words))
    rank, _, code = told.get("--exit", "").partition(":")
    if rank == os.environ["RANK"]:
        sys.exit(int(code))
    if told.get("--raise") == os.environ["RANK"]:
        raise ValueError("asked to")


if __name__ == "__main__":
    main()
