"""What a rank writes into: a pipe, or a terminal of its own for programs that draw bars and colours on one."""

from __future__ import annotations

import fcntl
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost the keeper a megabyte
    from collections.abc import Sequence


def channel(terminal: Sequence[int] | None) -> tuple[int, int]:
    """Read and write end of a pipe; with `terminal` (rows and columns) of a pseudo-terminal.

    Its output is not processed: a line feed stays one, so that a log reads the same either way.

    Raises:
        OSError: no descriptor or no pseudo-terminal is left.
    """
    if terminal is None:
        return os.pipe()
    import termios  # noqa: PLC0415 - most keepers need none

    reader, writer = os.openpty()
    mode = termios.tcgetattr(writer)
    output, local = 1, 3
    mode[output] &= ~termios.OPOST
    mode[local] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(writer, termios.TCSANOW, mode)
    resize(writer, terminal)
    return reader, writer


def resize(fd: int, terminal: Sequence[int]) -> None:
    """Give the pseudo-terminal, of which `fd` is either end, other rows and columns.

    Raises:
        OSError: `fd` is no terminal.
    """
    import termios  # noqa: PLC0415 - see above

    rows, columns = terminal
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
