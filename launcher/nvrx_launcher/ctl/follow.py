"""Logs as they grow, those of rounds that begin later too: `nvrx logs -f`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio.to_thread

from nvrx_launcher.ctl.growth import Growth

if TYPE_CHECKING:
    from nvrx_launcher.ctl.logs import Log

Look: TypeAlias = "Callable[[], tuple[Sequence[Path], Sequence[Log]]]"


async def follow(look: Look, shown: Mapping[Path, int], write: Callable[[Log, list[bytes]], None]) -> None:
    """Hand on each whole line that is added. Runs until cancelled.

    Args:
        look: the folders in which something new may appear, and the logs that are there now.
        shown: how many bytes of a log were shown already.
        write: is given lines without their ends.
    """
    tails: dict[Path, _Tail] = {}
    grown: tuple[Path, ...] = ()
    with Growth() as growth:
        changed = True
        while True:
            new = await anyio.to_thread.run_sync(_new, look, growth) if changed else []
            tails |= {log.path: _Tail(log, shown.get(log.path, 0)) for log in new}
            for tail in (tails[path] for path in [*(log.path for log in new), *grown] if path in tails):
                write(tail.log, await anyio.to_thread.run_sync(tail.lines))
            grown = await growth.grown()
            changed = any(path not in tails for path in grown)


class _Tail:
    """What was not shown of a log yet."""

    def __init__(self, log: Log, offset: int) -> None:
        self.log = log
        self._offset = offset
        self._partial = b""

    def lines(self) -> list[bytes]:
        """All whole lines that came since the last call."""
        with self.log.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        return whole


def _new(look: Look, growth: Growth) -> list[Log]:
    """Watch what is new, and give its logs.

    A watch tells of what comes after it only: this looks again until nothing is new.
    """
    found: list[Log] = []
    again = True
    while again:
        folders, logs = look()
        again = sum(growth.add(folder) for folder in folders) > 0
        found += [log for log in logs if growth.add(log.path)]
    return found
