"""The ranks' spools on the agent's side: read later, so that the agent's loop never waits for a full one.

All calls that read come in the order in which they were asked for: what a rank left is read before its spool is
closed, and what one round left before what the next one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nvrx_launcher.tracing_later import Later
from nvrx_telemetry import spool
from nvrx_telemetry.model import FinishedSpan, Value


class RankSpools:
    """See the module. `emit` takes spans in a thread, `lost` hears how many found no room in a spool.

    `now_ns` says when spans that never end did.
    """

    def __init__(
        self,
        emit: Callable[[FinishedSpan], None],
        lost: Callable[[int], None],
        now_ns: Callable[[], int],
        later: Later,
    ) -> None:
        self._emit = emit
        self._lost = lost
        self._now_ns = now_ns
        self._later = later
        self._readers: dict[int, spool.SpoolReader] = {}

    def open(self, local_rank: int, resource: Mapping[str, Value]) -> str:
        """Memory for what this rank will tell; returns where the rank finds it.

        Raises:
            OSError: no descriptor, or no memory, is left.
        """
        reader = self._readers[local_rank] = spool.SpoolReader(spool.make(str(local_rank)), resource)
        return reader.path

    def look(self) -> None:
        """Have read what is new of all ranks."""
        for reader in self._readers.values():
            self._later.put(self._drain, reader)

    def ended(self, local_rank: int) -> None:
        """This rank has no process any more: have read what it left."""
        reader = self._readers.get(local_rank)
        if reader is not None:
            self._later.put(self._drain, reader)

    def retire(self) -> None:
        """Nobody writes there any more: have all read to the end, and closed."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            self._later.put(self._end, reader)

    def _drain(self, reader: spool.SpoolReader) -> None:
        for span in reader.drain():
            self._emit(span)
        if reader.lost:
            self._lost(reader.lost)
            reader.lost = 0

    def _end(self, reader: spool.SpoolReader) -> None:
        """What never ended is told as that."""
        try:
            self._drain(reader)
            for span in reader.abandoned(self._now_ns()):
                self._emit(span)
        finally:
            reader.close()
