"""Tables for terminals: columns as wide as their longest cell, cut where the screen ends. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nvrx_launcher.wording import one_line

Paint = Callable[[str], str]
_GAP = "  "
_LEAST = 8
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and how it is painted; widths count without the paint."""

    text: str
    paint: Paint | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `flexible` ones are cut first, to `least` places; `right` holds numbers; `priority` 0 stays longest."""

    title: str
    flexible: bool = False
    right: bool = False
    priority: int = 0
    least: int = _LEAST


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell | str]],
    width: int | None,
    head: Paint | None = None,
) -> list[str]:
    """Lines of a table, at most `width` signs wide (None: as wide as it is). Columns that do not fit are left out."""
    cells = [
        [
            replace(cell, text=one_line(cell.text)) if isinstance(cell, Cell) else Cell(one_line(cell))
            for cell in row
        ]
        for row in rows
    ]
    kept = list(range(len(columns)))
    widths = [
        max([signs(column.title), *(signs(row[i].text) for row in cells)]) for i, column in enumerate(columns)
    ]
    if width is not None:
        kept, widths = _fitted(columns, widths, width)
    titles = [Cell(columns[i].title, head) for i in range(len(columns))]
    return [_line(columns, row, kept, widths) for row in [titles, *cells]]


def signs(text: str) -> int:
    """Places that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        for sign in text
    )


def cut(text: str, width: int) -> str:
    """The text in at most so many places, with a sign where it was cut."""
    if signs(text) <= width:
        return text
    while text and signs(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + _ELLIPSIS if width > 0 else ""


def _fitted(columns: Sequence[Column], widths: list[int], width: int) -> tuple[list[int], list[int]]:
    """Leave out what matters least until flexible columns, cut to what is left, have room enough."""
    kept, widths = list(range(len(columns))), list(widths)
    while True:
        rigid = sum(widths[i] for i in kept if not columns[i].flexible) + len(_GAP) * (len(kept) - 1)
        flexible = [i for i in kept if columns[i].flexible]
        room = width - rigid
        least = sum(min(widths[i], max(columns[i].least, len(columns[i].title))) for i in flexible)
        if room >= least or len(kept) == 1:
            break
        droppable = [i for i in kept if columns[i].priority > 0]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda i: columns[i].priority))
    _shrink(widths, flexible, sum(widths[i] for i in flexible) - max(room, 0), 1)
    over = sum(widths[i] for i in kept) + len(_GAP) * (len(kept) - 1) - width
    names = [i for i in kept if not columns[i].flexible and not columns[i].right]
    for columns_cut, least in ((names, _LEAST), (names, 1), (kept, 1)):  # nothing else is left to be cut
        over = _shrink(widths, columns_cut, over, least)
    return kept, widths


def _shrink(widths: list[int], which: Sequence[int], by: int, least: int) -> int:
    """Take so many places from the widest of these columns; returns what is left to be taken."""
    while by > 0 and which:
        widest = max(which, key=lambda i: widths[i])
        if widths[widest] <= least:
            break
        widths[widest] -= 1
        by -= 1
    return by


def _line(columns: Sequence[Column], row: Sequence[Cell], kept: Sequence[int], widths: Sequence[int]) -> str:
    parts = []
    for i in kept:
        text = cut(row[i].text, widths[i])
        space = " " * (widths[i] - signs(text))
        painted = row[i].paint
        shown = painted(text) if painted and text else text
        parts.append(f"{space}{shown}" if columns[i].right else f"{shown}{space}")
    return _GAP.join(parts).rstrip()
