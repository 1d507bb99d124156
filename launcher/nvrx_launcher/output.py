"""Shows on the console what the ranks of this node write, reading their logs as they grow."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nvrx_async.job.records import Assignment
from nvrx_launcher.filtered import FilteredFile
from nvrx_launcher.keeper_link import Keeper
from nvrx_launcher.rank_output import OutputPrinter, Stream
from nvrx_launcher.screen import Screen, call_in
from nvrx_launcher.streams import SHOW_ALL, Shown
from nvrx_launcher.workers import RankCommand

CHUNK_BYTES = 1 << 20
DRAIN_LIMIT_S = 2.0
"""How long the end of a round waits for a console that does not take its output."""

_STREAMS = {"stdout": Stream.STDOUT, "stderr": Stream.STDERR}


@dataclass(slots=True)
class _Log:
    """A log and how much of it was read; `shown` on the console, and its lines looked through by `filtered`."""

    rank: int
    stream: Stream
    path: Path
    shown: bool
    filtered: FilteredFile | None
    read_bytes: int = 0


class Output:
    """Only the screen's thread reads logs and prints; `grew` and `drain` are for the event loop."""

    def __init__(
        self,
        screen: Screen,
        out: BinaryIO,
        err: BinaryIO,
        clock_s: Callable[[], float],
        shown: Shown = SHOW_ALL,
    ) -> None:
        self._screen = screen
        self._out, self._err, self._clock_s = out, err, clock_s
        self._shown = shown
        self._logs: dict[tuple[int, str], _Log] = {}
        self._printer: OutputPrinter | None = None
        self._printing = threading.Lock()

    def expect(self, assignment: Assignment, commands: Sequence[RankCommand]) -> None:
        """These ranks are about to write; none whose output goes nowhere."""
        first = assignment.seat.first_rank
        paths = {command.local_rank: (command.stdout_path, command.stderr_path) for command in commands}
        logs: dict[tuple[int, str], _Log] = {}
        for (name, stream), number in zip(_STREAMS.items(), (0, 1), strict=True):
            filtered = self._filtered(commands[0], name, stream) if commands else None
            for local_rank, of_rank in paths.items():
                shown = self._shown.has(local_rank, stream)
                if shown or filtered is not None:
                    log = _Log(first + local_rank, stream, Path(of_rank[number]), shown, filtered)
                    logs[local_rank, name] = log
        host = assignment.seat.host if assignment.group_world_size > 1 else None
        wished = {
            first + local_rank: self._shown.prefix(first + local_rank, local_rank) for local_rank in paths
        }
        prefixes = {rank: prefix for rank, prefix in wished.items() if prefix is not None}

        def begin() -> None:
            self._logs = logs
            self._printer = OutputPrinter(
                self._out,
                self._err,
                world_size=assignment.world_size,
                host=host,
                prefixes=prefixes,
                clock=self._clock_s,
            )

        self._do(begin)

    def grew(self, local_rank: int, stream: str, keeper: Keeper) -> None:
        """Show what was added to a log, then let the keeper tell of the next growth."""
        loop = asyncio.get_running_loop()

        def show() -> None:
            self._show(self._logs.get((local_rank, stream)))
            call_in(loop, lambda: keeper.seen(local_rank, stream))

        self._do(show)

    async def drain(self) -> None:
        """Show all that was written until now, the unfinished last lines too."""
        self._do(self._end)
        await self._screen.drain(DRAIN_LIMIT_S)

    def settle(self) -> None:
        """Block the calling thread until all that was written is shown, or the console takes nothing any more."""
        self._screen.settle()

    def break_line(self) -> None:
        """End an unfinished line, for another writer on the same console; left out while a rank's output is stuck."""
        if self._printing.acquire(blocking=False):
            try:
                if self._printer is not None:
                    self._printer.break_line()
            finally:
                self._printing.release()

    def _do(self, job: Callable[[], None]) -> None:
        def alone() -> None:
            with self._printing:
                job()

        self._screen.do(alone)

    def _filtered(self, first: RankCommand, name: str, stream: Stream) -> FilteredFile | None:
        """The filtered file of a stream, in the folder of the round; `first` is any rank of it."""
        words = self._shown.words(stream)
        folder = Path(first.stdout_path).parents[1]
        familiar = Path(first.familiar).parent if first.familiar is not None else None
        return FilteredFile(folder / f"filtered_{name}.log", words, familiar) if words else None

    def _show(self, log: _Log | None) -> None:
        if log is None or self._printer is None:
            return
        try:
            with log.path.open("rb") as file:
                # What comes meanwhile is for the next time: a rank that never stops writing must not keep the
                # screen from the others.
                there_bytes = os.fstat(file.fileno()).st_size
                file.seek(log.read_bytes)
                while data := file.read(min(CHUNK_BYTES, max(0, there_bytes - log.read_bytes))):
                    log.read_bytes += len(data)
                    if log.shown:
                        self._printer.feed(log.rank, log.stream, data)
                    if log.filtered is not None:
                        log.filtered.feed(log.rank, data)
        except OSError:
            return  # the log could not be written either, which the keeper has warned of

    def _end(self) -> None:
        for log in self._logs.values():
            self._show(log)
        for log in self._logs.values():
            if log.filtered is not None:
                log.filtered.close()
        if self._printer is not None:
            self._printer.finish()
        self._logs = {}
