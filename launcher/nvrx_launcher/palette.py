"""Colours: errors red, warnings yellow, success green, paths and hints cyan. Text reads the same without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Palette:
    """Paints text, or leaves it as it is."""

    coloured: bool = False

    def error(self, text: str) -> str:
        """Red and bold."""
        return self._paint("1;31", text)

    def warning(self, text: str) -> str:
        """Yellow."""
        return self._paint("33", text)

    def success(self, text: str) -> str:
        """Green and bold."""
        return self._paint("1;32", text)

    def path(self, text: str) -> str:
        """Cyan: a path, or the word before a hint."""
        return self._paint("36", text)

    def quiet(self, text: str) -> str:
        """Dim."""
        return self._paint("2", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.coloured and text else text


PLAIN = Palette()


def palette_for(*, terminal: bool, environment: Mapping[str, str]) -> Palette:
    """Colours on a terminal, unless NO_COLOR is set (to anything but nothing) or TERM is dumb."""
    wanted = terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return Palette(coloured=wanted)
