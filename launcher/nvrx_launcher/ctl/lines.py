"""Sentences in lines that end where the screen does: words stay whole, paint takes no room. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nvrx_launcher.ctl.table import Cell, signs

_WORD = re.compile(r" *\S+")
_LEAST = 8
"""A line has room for so much, however far it is indented."""


def packed(parts: Sequence[Cell | str], width: int | None, indent: str = "") -> list[str]:
    """Texts one behind the other; a line that begins anew is indented. What is painted is not parted. None: no line."""
    if not parts:
        return []
    lines, used = [""], 0
    room = None if width is None else max(width, len(indent) + _LEAST)
    for part in parts:
        cell = part if isinstance(part, Cell) else Cell(part)
        for word in [cell.text] if cell.paint else _WORD.findall(cell.text):
            rest = word
            if room is not None and used > len(indent) and used + signs(word) > room:
                lines, used, rest = [*lines, indent], len(indent), word.lstrip()
            while room is not None and used + signs(rest) > room:  # a word that no line has room for
                fitting = _beginning(rest, room - used)
                lines[-1] += cell.paint(fitting) if cell.paint else fitting
                lines, used, rest = [*lines, indent], len(indent), rest[len(fitting) :]
            lines[-1] += cell.paint(rest) if cell.paint else rest
            used += signs(rest)
    return lines


def hanging(
    head: str, text: str, width: int | None, *, least: int, paint_head: str | None = None
) -> list[str]:
    """A text behind a head, its lines below each other; where there it has less than `least` places, below the head.

    `paint_head`: the head as it is written.
    """
    shown, place = head if paint_head is None else paint_head, signs(head)
    if width is not None and width - place < least:
        return [shown.rstrip(), *(f"  {line}" for line in packed([text], width - 2))]
    first, *later = packed([text], None if width is None else width - place)
    return [shown + first, *(f"{'':<{place}}{line}" for line in later)]


def _beginning(text: str, places: int) -> str:
    """As many of its signs as take so many places, one at least."""
    end = 1
    while end < len(text) and signs(text[: end + 1]) <= places:
        end += 1
    return text[:end]
