"""Keeps the table of options in `docs/from-nvrx.md`: `python -m nvrx_launcher.ft_doc PAGE` rewrites it."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from nvrx_launcher.ft_options import FT_OPTIONS, Becomes, FtOption
from nvrx_launcher.option import Inert

BEGIN = "<!-- options: made by python -m nvrx_launcher.ft_doc -->"
END = "<!-- options: end -->"


def table() -> str:
    """Every option of ft_launcher and every setting of its files, and what becomes of it here."""
    rows = [_row(list(ones)) for _, ones in groupby(FT_OPTIONS, lambda one: (one.meaning, one.harmless))]
    return "\n".join(["| ft_launcher | here | |", "|---|---|---|", *rows])


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _row(ones: list[FtOption]) -> str:
    """Options with one meaning."""
    names, one = ", ".join(_names(one) for one in ones), ones[0]
    meaning = one.meaning
    if isinstance(meaning, Becomes):
        return f"| {names} | `{meaning.option}` | {meaning.how} |"
    if isinstance(meaning, Inert):
        return f"| {names} | no effect | {meaning.line} |"
    taken = f" Taken: {', '.join(f'`{value}`' for value in one.harmless)}." if one.harmless else ""
    return f"| {names} | refused | {meaning.reason}. Instead: {meaning.hint}.{taken} |"


def _names(one: FtOption) -> str:
    """By its name in a file, where it may stand in one; and as it is spelled where that does not follow from it."""
    regular = one.spellings[:1] == (f"--ft-{one.name.replace('_', '-')}",)
    if not one.in_file:
        return f"`{one.shown}`"
    return f"`{one.name}`" if regular or not one.spellings else f"`{one.name}` (`{one.shown}`)"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
