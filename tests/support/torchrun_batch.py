"""Runs many command lines of torchrun in one process that imported torch once: each in a fork, as its own leader.

Reads a JSON list of runs from stdin, each `{"arguments": [...], "environment": {...}, "output": path}`; those of
one inner list run together. Prints a JSON list of exit codes of the same shape.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from torch.distributed import run as torchrun

Run = dict[str, object]


def main() -> None:
    groups: list[list[Run]] = json.load(sys.stdin)
    codes = []
    for group in groups:
        pids = [start(run) for run in group]
        codes.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
    print(json.dumps(codes))


def start(run: Run) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        output = os.open(str(run["output"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(run["environment"])  # type: ignore[call-overload]
        torchrun.main(run["arguments"])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter would end: with a traceback and 1
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
