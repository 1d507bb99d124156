"""Output of ranks: drained from pipes into files, with a small time index beside each.

Index file (`<file>.idx`): records of 16 bytes, little-endian u64 byte offset and float64 Unix time (s):
"the byte at this offset was read at this time". A record is written before a chunk when the last one is a
second or 64 KiB away, so a line's time is known to a second and a reader can seek by time.
"""

from __future__ import annotations

import errno
import os
import struct
import time

INDEX_SUFFIX = ".idx"
INDEX_RECORD = struct.Struct("<Qd")
INDEX_EVERY_S = 1.0
INDEX_EVERY_BYTES = 64 << 10

_CHUNK_BYTES = 256 << 10
# One buffer for all streams: the keeper has one thread, and a chunk is written before the next is read.
_CHUNK = memoryview(bytearray(_CHUNK_BYTES))


class Spool:
    """One file that only grows. What cannot be written is counted: a full disk never blocks a rank.

    A path that is empty, or a FIFO that nobody reads, is a file that cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost_bytes = 0
        self.error: OSError | None = None
        self._offset = 0
        self._indexed_at_s = 0.0
        self._indexed_offset = -INDEX_EVERY_BYTES
        self._fd = self._open(path)
        self._index_fd = self._open(path + INDEX_SUFFIX) if self._fd is not None else None
        if self._fd is not None:
            self._offset = os.fstat(self._fd).st_size

    def write(self, data: memoryview) -> None:
        """Append; what a failing disk does not take is added to `lost_bytes`."""
        self._index()
        while data:
            if self._fd is None:
                self.lost_bytes += len(data)
                return
            try:
                written = os.write(self._fd, data)
            except OSError as error:
                self.error = self.error or error
                self.lost_bytes += len(data)
                return
            self._offset += written
            data = data[written:]

    def close(self) -> None:
        """Close both files."""
        for fd in (self._fd, self._index_fd):
            if fd is not None:
                os.close(fd)
        self._fd = self._index_fd = None

    def _open(self, path: str) -> int | None:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
        except OSError as error:
            self.error = self.error or error
            return None

    def _index(self) -> None:
        now_s = time.time()
        near = abs(now_s - self._indexed_at_s) < INDEX_EVERY_S
        if self._index_fd is None or (near and self._offset - self._indexed_offset < INDEX_EVERY_BYTES):
            return
        self._indexed_at_s, self._indexed_offset = now_s, self._offset
        if not _written(self._index_fd, INDEX_RECORD.pack(self._offset, now_s)):
            # A torn record would shift all behind it; without more records, times get coarser only.
            os.close(self._index_fd)
            self._index_fd = None


def _written(fd: int, record: bytes) -> bool:
    try:
        return os.write(fd, record) == len(record)
    except OSError:
        return False


class Stream:
    """stdout or stderr of one rank.

    The agent is told once that there is more to read; the next telling waits for its "seen". So a rank that
    writes fast costs the agent no more messages than it takes.
    """

    def __init__(self, local_rank: int, name: str, fd: int, path: str) -> None:
        self.local_rank = local_rank
        self.name = name
        self.fd = fd
        self.spool = Spool(path)
        self.warned = False
        self.may_tell = True
        self.untold = False
        os.set_blocking(fd, False)

    def pump(self) -> int | None:
        """Move one chunk from the pipe to the file: its bytes, 0 at the end, None if there is nothing now."""
        try:
            size = os.readv(self.fd, [_CHUNK])
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return 0  # the end of a terminal that nobody has open any more
        if size:
            self.spool.write(_CHUNK[:size])
            self.untold = True
        return size

    def pump_all(self, chunks: int) -> None:
        """Move what is in the pipe, but at most this many chunks: a writer may never stop."""
        for _ in range(chunks):
            if not self.pump():
                return

    def take_growth(self) -> bool:
        """Whether to tell the agent of new output now; the right to tell is used up by that."""
        if not (self.may_tell and self.untold):
            return False
        self.may_tell = self.untold = False
        return True

    def close(self) -> None:
        """Close pipe and files."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.spool.close()
