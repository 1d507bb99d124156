"""Keeps the table of options in `docs/from-torchrun.md`: `python -m nvrx_launcher.migration_doc PAGE` rewrites it."""

from __future__ import annotations

import sys
from pathlib import Path

from nvrx_launcher.help_text import default_text
from nvrx_launcher.option import Inert, Option, Refused
from nvrx_launcher.options import OPTIONS
from nvrx_launcher.options.groups import FILE, HELP

BEGIN = "<!-- options: made by python -m nvrx_launcher.migration_doc -->"
END = "<!-- options: end -->"


def table() -> str:
    """Every option of torchrun, and what becomes of it here."""
    rows = [_row(option) for option in OPTIONS if _is_torchruns(option)]
    return "\n".join(["| option | here | what it does |", "|---|---|---|", *rows])


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _is_torchruns(option: Option) -> bool:
    """Options that only we have take their variable from NVRX_ alone."""
    variables = option.environment
    return option.group not in (FILE, HELP) and (
        not variables or any(name.startswith("PET_") for name in variables)
    )


def _row(option: Option) -> str:
    names = ", ".join(f"`{spelling}`" for spelling in option.spellings if "_" not in spelling)
    default = default_text(option)
    says = option.doc + (f" Default: {default}." if default else "")
    if isinstance(option.status, Inert):
        return f"| {names} | no effect | {option.status.line}. |"
    if isinstance(option.status, Refused):
        return f"| {names} | refused | {option.status.reason}. Instead: {option.status.hint}. |"
    return f"| {names} | works | {says.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
