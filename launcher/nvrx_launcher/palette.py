"""Colours: errors red, warnings yellow, success green, paths and hints cyan. Text reads the same without.

ANSI yellow, green and cyan cannot be read on white (contrast below 2.3 in xterm's colours). Where a terminal knows
256 colours, darker ones are taken: 4 at least on white and on black, by WCAG 2's formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Palette:
    """Paints text, or leaves it as it is. `deep`: the terminal knows 256 colours."""

    coloured: bool = False
    deep: bool = False

    def error(self, text: str) -> str:
        """Red and bold."""
        return self._paint("1;31", text)

    def warning(self, text: str) -> str:
        """Yellow."""
        return self._paint("38;5;130" if self.deep else "33", text)

    def success(self, text: str) -> str:
        """Green and bold."""
        return self._paint("1;38;5;28" if self.deep else "1;32", text)

    def path(self, text: str) -> str:
        """Cyan: a path, or the word before a hint."""
        return self._paint("38;5;31" if self.deep else "36", text)

    def quiet(self, text: str) -> str:
        """Dim."""
        return self._paint("2", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.coloured and text else text


PLAIN = Palette()


def palette_for(*, terminal: bool, environment: Mapping[str, str]) -> Palette:
    """Colours on a terminal, unless NO_COLOR is set (to anything but nothing) or TERM is dumb."""
    wanted = terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    term = environment.get("TERM", "")
    # Within tmux and GNU screen, which take 256 colours and give their terminal what it knows, whatever they call it.
    multiplexed = term.startswith(("tmux", "screen"))
    deep = "256color" in term or multiplexed or environment.get("COLORTERM") in ("truecolor", "24bit")
    return Palette(coloured=wanted, deep=wanted and deep)
