"""How much output ranks wrote: bytes of their files, each counted once, also of ranks that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import anyio

from nvrx_async.aside import aside

ANSWER_LIMIT_S = 1.0
"""How long a look waits for the disk. One that does not answer is not asked again before it has."""
_FILES = ("stdout.log", "stderr.log")


class LogCount:
    """Counts what is new in folders of ranks, for as long as something may write there."""

    def __init__(
        self,
        sizes: Callable[[Iterable[Path]], dict[Path, int]] | None = None,
        answer_limit_s: float = ANSWER_LIMIT_S,
    ) -> None:
        self._sizes = sizes or log_bytes
        self._answer_limit_s = answer_limit_s
        self._asks = False
        self._counted: dict[Path, int] = {}
        # A scraper and the agent itself may look at once: one of two looks that overlap would count twice.
        self._looking = anyio.Lock()

    def begin(self, folder: Path) -> None:
        """A rank writes there from now on."""
        self._counted.setdefault(folder, 0)

    async def new_bytes(self, alive: Callable[[], Iterable[Path]]) -> int:
        """What came since the last time. `alive`: where somebody may still write.

        Other folders are looked at once more, and forgotten. 0 where the disk does not answer: it counts later.
        """
        async with self._looking:
            if self._asks:
                return 0
            self._asks = True
            still, sizes = set(alive()), dict[Path, int]()
            try:
                with anyio.move_on_after(self._answer_limit_s):
                    sizes = await aside(self._ask, tuple(self._counted))
            except OSError:  # no thread is left for it
                self._asks = False
            new = sum(max(size - self._counted[folder], 0) for folder, size in sizes.items())
            for folder, size in sizes.items():
                if folder in still:
                    self._counted[folder] = size
                else:
                    del self._counted[folder]
            return new

    def _ask(self, folders: Iterable[Path]) -> dict[Path, int]:
        try:
            return self._sizes(folders)
        finally:
            self._asks = False


def log_bytes(folders: Iterable[Path]) -> dict[Path, int]:
    """Bytes of output in each of these ranks' folders. Blocks on the disk."""
    return {folder: sum(_size(folder / name) for name in _FILES) for folder in folders}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # not written yet, or the disk says nothing
        return 0
