"""The log of a member: a disk that does not answer, or takes no file, costs the log and not the member."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import anyio

from nvrx_async.aside import aside

_LIMIT_S = 5.0
_TAIL_LINES = 12


async def opened(log: Path) -> int:
    """A descriptor to append to the log; to nowhere where there is no way to it within five seconds."""
    with anyio.move_on_after(_LIMIT_S):
        try:
            return await aside(
                os.open,
                str(log),
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
                unwanted=os.close,
            )
        except OSError:
            pass  # whoever misses the log finds the reason at the place that every message names
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def tail(log: Path) -> tuple[str, ...]:
    """The last lines, or why there are none."""
    try:
        with log.open("rb") as lines:
            return tuple(line.decode(errors="replace").rstrip() for line in deque(lines, maxlen=_TAIL_LINES))
    except OSError as error:
        return (f"{log}: {error.strerror}",)
