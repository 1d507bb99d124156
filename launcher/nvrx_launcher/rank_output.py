"""Output of ranks on the console: whole lines, each with its rank, nothing glued and nothing lost.

A bar that redraws itself with carriage returns is shown at most once in `BAR_INTERVAL_S`; its end always.
The only rank of a job is passed through as it is.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_LINE_BYTES: Final = 64 * 1024
BAR_INTERVAL_S: Final = 1.0
_BREAK = re.compile(rb"\r*\n|\r(?!\r*\n)")


class Stream(IntEnum):
    """Which output of a rank, by its descriptor."""

    STDOUT = 1
    STDERR = 2


class Line(NamedTuple):
    """A line without its end. `redrawn`: a carriage return ended it, so what follows stands in its place."""

    text: bytes
    redrawn: bool = False


class LineAssembler:
    """Makes lines of bytes as they come. Lines longer than MAX_LINE_BYTES are split."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Line]:
        """The lines that are complete now."""
        data = self._rest + data
        # Carriage returns at the very end wait: a line feed may follow, which would make them a line's end.
        stop = len(data.rstrip(b"\r"))
        lines: list[Line] = []
        start = 0
        for found in _BREAK.finditer(data, 0, len(data) if stop == len(data) else stop):
            redrawn = not found[0].endswith(b"\n")
            lines.extend(_split(data[start : found.start()], redrawn=redrawn))
            start = found.end()
        while stop - start > MAX_LINE_BYTES:
            lines.append(Line(data[start : start + MAX_LINE_BYTES]))
            start += MAX_LINE_BYTES
        self._rest = data[start:]
        return lines

    def finish(self) -> list[Line]:
        """What stands on an unfinished line, when nothing more will come."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return [Line(rest)] if rest else []


def _split(text: bytes, *, redrawn: bool) -> list[Line]:
    if redrawn and not text:
        return []
    pieces = [text[at : at + MAX_LINE_BYTES] for at in range(0, len(text), MAX_LINE_BYTES)] or [b""]
    return [*(Line(piece) for piece in pieces[:-1]), Line(pieces[-1], redrawn)]


class _Sink:
    """A stream of this process; gone for good after its first error."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.problem = ""

    def write(self, data: bytes) -> None:
        if self.problem or not data:
            return
        try:
            self._stream.write(data)
            self._stream.flush()
        except (OSError, ValueError) as error:
            self.problem = str(error)


class _Source:
    """One stream of one rank."""

    def __init__(self) -> None:
        self.lines = LineAssembler()
        self.bar_shown_s = float("-inf")


class OutputPrinter:
    """Prints what ranks write: their stdout to `out`, their stderr to `err`.

    `host` is named in the prefix when the job has several nodes, else None. `prefixes`: those a person wants
    instead, by rank. `clock` gives seconds. Writing
    blocks as long as the reader of the console does: call it where that is allowed. When a stream is gone,
    what is meant for it is dropped, and `problem` says so once it happened.
    """

    def __init__(
        self,
        out: BinaryIO,
        err: BinaryIO,
        *,
        world_size: int,
        host: str | None = None,
        prefixes: Mapping[int, bytes] | None = None,
        clock: Callable[[], float],
    ) -> None:
        self._sinks = {Stream.STDOUT: _Sink(out), Stream.STDERR: _Sink(err)}
        self._sources: dict[tuple[int, Stream], _Source] = {}
        self._prefixes = prefixes or {}
        self._alone = world_size == 1 and not self._prefixes
        self._suffix = f" {host}] ".encode() if host else b"] "
        self._clock = clock
        self._unfinished: Stream | None = None

    @property
    def problem(self) -> str:
        """Why output is no longer shown; empty while it is."""
        return next((sink.problem for sink in self._sinks.values() if sink.problem), "")

    def feed(self, rank: int, stream: Stream, data: bytes) -> None:
        """Print what a rank wrote, as far as its lines are whole."""
        if self._alone:
            self._pass_through(stream, data)
            return
        source = self._sources.setdefault((rank, stream), _Source())
        self._print(rank, stream, self._chosen(source, source.lines.feed(data)))

    def end(self, rank: int, stream: Stream) -> None:
        """A rank's stream is at its end: print its unfinished line."""
        if self._alone:
            self.break_line()
            return
        source = self._sources.pop((rank, stream), None)
        if source is not None:
            self._print(rank, stream, source.lines.finish())

    def finish(self) -> None:
        """All streams are at their end."""
        for rank, stream in list(self._sources):
            self.end(rank, stream)
        self.break_line()

    def break_line(self) -> None:
        """End an unfinished line of the only rank, so that another writer begins at the left."""
        if self._unfinished is not None:
            self._sinks[self._unfinished].write(b"\n")
            self._unfinished = None

    def _pass_through(self, stream: Stream, data: bytes) -> None:
        if data:
            self._sinks[stream].write(data)
            self._unfinished = None if data.endswith(b"\n") else stream

    def _chosen(self, source: _Source, lines: list[Line]) -> list[Line]:
        """All lines, but of a bar only what is due."""
        if not any(line.redrawn for line in lines):
            return lines
        now_s = self._clock()
        chosen = []
        for line in lines:
            if line.redrawn:
                if now_s < source.bar_shown_s + BAR_INTERVAL_S:
                    continue
                source.bar_shown_s = now_s
            chosen.append(line)
        return chosen

    def _print(self, rank: int, stream: Stream, lines: list[Line]) -> None:
        prefix = self._prefixes.get(rank, b"[rank %d%s" % (rank, self._suffix))
        self._sinks[stream].write(b"".join(b"%s%s\n" % (prefix, line.text) for line in lines))
