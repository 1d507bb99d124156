"""A rank that does what it is asked by a FIFO: `_telemetry_rank.py FOLDER [MODULE …]`. Each answer is a line of JSON.

`calls N`: CPU time of this thread for N beats, and for N empty steps. `fail`: the instant of a fault. `train N`: N
steps of 10 ms with a beat each, and how late each was. `end`: finish.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

import nvrx_async

PAUSE_S = 0.01


def main() -> None:
    folder, *modules = Path(sys.argv[1]), *sys.argv[2:]
    for module in modules:
        importlib.import_module(module)
    agent = int(
        Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    )  # above the keeper
    with (
        nvrx_async.connect() as rank,
        (folder / "in").open() as asked,
        (folder / "out").open("w", buffering=1) as out,
    ):
        for step in rank.steps(3):
            if step == 0:
                first = {**moment(agent), "rank_ns": time.process_time_ns(), "round": rank.round}
        print(json.dumps(first), file=out)
        for line in asked:
            word, _, count = line.strip().partition(" ")
            if word == "end":
                break
            if word == "fail":
                print(json.dumps(moment(agent)), file=out)
                os._exit(1)
            print(
                json.dumps(calls(rank, int(count)) if word == "calls" else train(rank, int(count))), file=out
            )


def moment(agent: int) -> dict[str, int]:
    """Now, and the CPU time that the agent has used: all of it, and its event loop's thread."""
    everything = time.clock_gettime_ns((~agent << 3) | 2)  # clock_getcpuclockid(3)
    loop = int(Path(f"/proc/{agent}/schedstat").read_text().split()[0])
    return {"at_ns": time.monotonic_ns(), "agent_ns": everything, "loop_ns": loop}


def calls(rank: nvrx_async.Rank, count: int) -> dict[str, float]:
    began = time.thread_time_ns()
    for _ in range(count):
        rank.heartbeat()
    between = time.thread_time_ns()
    for _ in rank.steps(count):
        pass
    return {"beat": (between - began) / count, "step": (time.thread_time_ns() - between) / count}


def train(rank: nvrx_async.Rank, count: int) -> dict[str, list[float]]:
    late, due = [], time.monotonic()
    for _ in rank.steps(count):
        rank.heartbeat()
        due += PAUSE_S
        time.sleep(max(0.0, due - time.monotonic()))
        late.append(time.monotonic() - due)
        due = max(due, time.monotonic())
    return {"late_s": late}


main()
