"""A rank with spans of its own. What it found in its environment it writes to `FOLDER/<round>.json`.

In round 0 it waits until somebody writes into the FIFO `FOLDER/go`, and fails; later rounds finish.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import nvrx_async
import nvrx_telemetry
from nvrx_telemetry import semconv


def main() -> None:
    folder = Path(sys.argv[1])
    with nvrx_async.connect() as rank:
        for step in rank.steps(4):
            with (
                nvrx_telemetry.span(semconv.CKPT_SCHEDULE, {semconv.CKPT_CALL_IDX: step}),
                nvrx_telemetry.span(semconv.CKPT_WRITE),  # of a group that is off unless it is asked for
                nvrx_telemetry.span(semconv.ATTRIBUTION, {semconv.FAULT_KIND: "hang"}),
            ):
                pass
        loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "grpc"))
        found = {"pid": os.getpid(), "loaded": loaded, "environment": dict(os.environ)}
        new = folder / f"{rank.round}.new"
        new.write_text(json.dumps(found))
        new.rename(folder / f"{rank.round}.json")
        if rank.round == 0 and (folder / "go").exists():
            print("has trained", flush=True)
            (folder / "go").read_text()
            os._exit(3)


if __name__ == "__main__":
    main()
