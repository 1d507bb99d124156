"""A second file with the lines of all ranks of this node that hold a chosen word (--duplicate-…-filters)."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from nvrx_launcher.rank_output import Line, LineAssembler
from nvrx_launcher.workers import link


class FilteredFile:
    """Written as the ranks write; a disk that takes nothing ends it, the ranks' own files have everything.

    `familiar`: a folder where torchrun's users look for it.
    """

    def __init__(self, path: Path, words: tuple[str, ...], familiar: Path | None = None) -> None:
        self._path = path
        self._familiar = familiar
        self._words = tuple(word.encode() for word in words)
        self._lines: dict[int, LineAssembler] = {}
        self._file: BinaryIO | None = None
        self._broken = False

    def feed(self, rank: int, data: bytes) -> None:
        """What a rank wrote. Blocks on the disk."""
        self._write(rank, self._lines.setdefault(rank, LineAssembler()).feed(data))

    def close(self) -> None:
        """Nothing more will come."""
        for rank, lines in self._lines.items():
            self._write(rank, lines.finish())
        self._lines = {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, rank: int, lines: list[Line]) -> None:
        found = [line.text for line in lines if any(word in line.text for word in self._words)]
        if not found or self._broken:
            return
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
                if self._familiar is not None:
                    link(self._familiar / self._path.name, self._path)
            self._file.write(b"".join(b"[rank %d] %s\n" % (rank, text) for text in found))
        except OSError:
            self._broken = True
