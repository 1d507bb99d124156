"""Logs as they grow, those of rounds that begin later too: `nvrx logs -f`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.to_thread

from nvrx_launcher.ctl.growth import Growth

if TYPE_CHECKING:
    from nvrx_launcher.ctl.logs import Log

Look: TypeAlias = "Callable[[], tuple[Sequence[Path], Sequence[Log]]]"


async def follow(
    look: Look,
    shown: Mapping[Path, int],
    write: Callable[[Log, list[bytes]], None],
    over: Callable[[], Awaitable[object]] = anyio.sleep_forever,
) -> None:
    """Hand on each whole line that is added, until `over` returns, and what is there by then.

    Args:
        look: the folders in which something new may appear, and the logs that are there now.
        shown: how many bytes of a log were shown already.
        write: is given lines without their ends.
        over: returns when nothing more will be written; without it this runs until cancelled.
    """
    tails: dict[Path, _Tail] = {}

    async def take(grown: Iterable[Path], *, changed: bool, last: bool = False) -> None:
        new = await anyio.to_thread.run_sync(_new, look, growth) if changed else []
        tails.update({log.path: _Tail(log, shown.get(log.path, 0)) for log in new})
        for path in dict.fromkeys([*(log.path for log in new), *grown]):
            if path in tails:
                write(tails[path].log, await anyio.to_thread.run_sync(tails[path].lines, last))

    with Growth() as growth:
        async with anyio.create_task_group() as tasks:

            async def until_over() -> None:
                await over()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_over)
            await take((), changed=True)
            while True:
                grown = await growth.grown()
                await take(grown, changed=any(path not in tails for path in grown))
        await take(list(tails), changed=True, last=True)


class _Tail:
    """What was not shown of a log yet."""

    def __init__(self, log: Log, offset: int) -> None:
        self.log = log
        self._offset = offset
        self._partial = b""

    def lines(self, last: bool = False) -> list[bytes]:  # noqa: FBT001, FBT002 - called in a thread
        """All whole lines that came since the last call; the `last` time what never was finished too."""
        with self.log.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        if last and self._partial:
            whole.append(self._partial)
            self._partial = b""
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
