"""Runs a program that dies with its parent: `python -I -S trampoline.py PARENT_PID PROGRAM ARGUMENT…`.

Run as a file, imports the standard library only. `exec` keeps the parent-death signal (prctl(2)); setting
it here rather than between fork and exec lets the parent, which has gRPC's threads in it, start us by
vfork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = 125


def main(parent: int, program: list[str]) -> None:
    """Tie this process to `parent`, then become `program`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the signal was asked for
        sys.exit(_PARENT_GONE)
    os.execv(program[0], program)  # noqa: S606 - becoming the program is the purpose


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
