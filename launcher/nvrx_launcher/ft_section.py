"""The section `fault_tolerance` of ft_launcher's YAML files."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from nvrx_launcher.errors import UsageError
from nvrx_launcher.ft_options import BY_KEY, FT_OPTIONS
from nvrx_launcher.ft_translate import Setting, Translated, translated
from nvrx_launcher.option import Source
from nvrx_launcher.options import OPTIONS

NAME: Final = "fault_tolerance"
MAPPINGS: Final = frozenset({"rank_section_timeouts"})
LISTS: Final = frozenset({"storage_healthcheck_path"})


@dataclass(frozen=True, slots=True)
class Row:
    """A setting as it is written: None for null. `where` is `file:line`."""

    key: str
    text: str | None
    where: str


def is_setting(key: str) -> bool:
    """Whether the section has a setting of this name."""
    return key in BY_KEY


def of_rows(where: str, rows: list[Row]) -> Translated:
    """The settings as options; `where` is the section's `file:line`.

    Raises:
        UsageError: a setting that ft_launcher does not have, or one that cannot be kept.
    """
    settings = [_setting(row) for row in rows]
    return translated(f"{where}: {NAME}", settings)


def _setting(row: Row) -> Setting:
    option = BY_KEY.get(row.key)
    if option is None:
        raise UsageError(f"{row.where}: {NAME} has no {row.key}", _hint(row.key))
    return Setting(option, f"{row.where}: {row.key}", row.text, Source.FILE)


def _hint(key: str) -> str:
    for option in FT_OPTIONS:
        if option.name == key:
            return f"give {option.shown} on the command line"
    if any(option.name == key for option in OPTIONS):
        return f"options of nvrx-launch stand outside of {NAME}"
    close = get_close_matches(key, BY_KEY, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"options of nvrx-launch stand outside of {NAME}"
