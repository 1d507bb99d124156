"""Whether ranks write to a terminal, and of what size."""

from __future__ import annotations

import os
from typing import TextIO

USUAL_SIZE = (24, 80)


def terminal_size(stdout: TextIO, *, pty: bool | None) -> tuple[int, int] | None:
    """Rows and columns of the terminal that ranks get; None if they write into pipes.

    With `pty` None they get one if this process has one.
    """
    if pty is False or (pty is None and not stdout.isatty()):
        return None
    try:
        size = os.get_terminal_size(stdout.fileno())
    except OSError:
        return USUAL_SIZE
    return (size.lines, size.columns) if size.lines and size.columns else USUAL_SIZE
