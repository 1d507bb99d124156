"""The console as a file descriptor, without Python's buffer in front of it.

A thread that is stuck in a write holds the lock of that buffer, and Python aborts at its end when it finds it held:
a console that nobody reads would turn the exit code of a finished job into that of a crash.
"""

from __future__ import annotations

import io
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIECE_BYTES = 64 * 1024
"""What is written at once, so that a slow reader is seen to make progress."""
UNDIVIDED_BYTES = select.PIPE_BUF
"""What a pipe takes in one piece: where several write to it, others come between lines only."""


class Descriptor(io.RawIOBase):
    """Writes all that it is given by `put`, which takes bytes and answers how many it took; counts them.

    At most `piece_bytes` are written at once, whole lines if they fit.
    """

    def __init__(self, put: Callable[[memoryview], int], piece_bytes: int = PIECE_BYTES) -> None:
        super().__init__()
        self._piece_bytes = piece_bytes
        self._put = put
        self.written_bytes = 0

    def writable(self) -> bool:
        """Nothing else can be done with it."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write everything, for as long as that takes.

        Raises:
            OSError: its reader is gone.
        """
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            taken = self._put(_piece(left, self._piece_bytes))
            self.written_bytes += taken
            left = left[taken:]
        return size

    @property
    def binary(self) -> BinaryIO:
        """For bytes."""
        return cast("BinaryIO", self)

    def text(self, like: TextIO) -> TextIO:
        """For text, encoded as `like` does it."""
        return io.TextIOWrapper(
            self.binary, encoding=like.encoding, errors=like.errors, newline="\n", write_through=True
        )


def _piece(left: memoryview, size: int) -> memoryview:
    """As many whole lines as fit; a part of the first if that is longer."""
    if len(left) <= size:
        return left
    end = bytes(left[:size]).rfind(b"\n") + 1
    return left[: end or size]


def console(out: TextIO, err: TextIO) -> tuple[Descriptor, Descriptor]:
    """The descriptors below both streams; a stream itself where there is none, as in a notebook."""
    size = UNDIVIDED_BYTES if _place(out) == _place(err) else PIECE_BYTES
    return _descriptor(out, size), _descriptor(err, size)


def _place(stream: TextIO) -> tuple[int, int] | None:
    """Which file, pipe or terminal a stream writes to."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _descriptor(stream: TextIO, piece_bytes: int) -> Descriptor:
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return Descriptor(stream.buffer.write, piece_bytes)
    return Descriptor(lambda data: _written(fd, data), piece_bytes)


def _written(fd: int, data: memoryview) -> int:
    """As os.write, also where another process that has the same console made it non-blocking."""
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            room = select.poll()
            room.register(fd, select.POLLOUT)
            room.poll()
