"""The ranks' spools on the agent's side: read by a thread, so that the agent's loop never waits for a full one.

Everything that concerns spools is done by that thread, in the order in which it was asked for: what a rank left is
read before its spool is closed, and what one round left before what the next one does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue

from nvrx_telemetry import spool
from nvrx_telemetry.model import FinishedSpan, Value

PAUSE_S = 0.2
"""Ranks that end begin a restart: so long the thread keeps out of its way, and reads in time for the spans of it."""


class RankSpools:
    """See the module. `emit` takes spans and is called by the thread; `now_ns` says when spans that never end did."""

    def __init__(
        self,
        emit: Callable[[FinishedSpan], None],
        now_ns: Callable[[], int],
        failed: Callable[[Exception], None],
    ) -> None:
        self._emit = emit
        self._now_ns = now_ns
        self._failed = failed
        self._readers: dict[int, spool.SpoolReader] = {}
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, local_rank: int, resource: Mapping[str, Value]) -> str:
        """Memory for what this rank will tell; returns where the rank finds it.

        Raises:
            OSError: no descriptor, or no memory, is left.
        """
        reader = spool.SpoolReader(spool.make(str(local_rank)), resource)
        self._readers[local_rank] = reader
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="nvrx-spools", daemon=True)
            self._thread.start()
        return reader.path

    def look(self) -> None:
        """Have read what is new of all ranks. Does not wait for it."""
        for reader in self._readers.values():
            self._orders.put(partial(self._drain, reader))

    def ended(self, local_rank: int) -> None:
        """This rank has no process any more: have read what it left. Does not wait for it."""
        reader = self._readers.get(local_rank)
        if reader is not None:
            self._orders.put(partial(self._drain, reader))

    def retire(self) -> None:
        """Nobody writes there any more: have all read to the end, and closed. Does not wait for it."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            self._orders.put(partial(self._end, reader))

    def close(self, within_s: float) -> bool:
        """Read and close all that is left; False if that took too long. Blocks for `within_s` at most."""
        self.retire()
        if self._thread is None:
            return True
        self._ends.set()
        self._orders.put(None)
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            orders = [self._orders.get()]
            self._ends.wait(PAUSE_S)
            while not self._orders.empty():
                orders.append(self._orders.get())
            for order in orders:
                if order is None:
                    return
                self._carry_out(order)

    def _carry_out(self, order: Callable[[], None]) -> None:
        try:
            order()
        except Exception as error:  # noqa: BLE001 - outermost frame of a helper: it is told, training goes on
            self._failed(error)

    def _drain(self, reader: spool.SpoolReader) -> None:
        for span in reader.drain():
            self._emit(span)

    def _end(self, reader: spool.SpoolReader) -> None:
        """What never ended is told as that."""
        try:
            self._drain(reader)
            for span in reader.abandoned(self._now_ns()):
                self._emit(span)
        finally:
            reader.close()
