"""`nvrx-launch --print-config`: every option, its value, who gave it, and whom that outranked. Pure.

What looks like a secret is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from nvrx_launcher.blank import BLANK, NAMES_SECRET, blanked
from nvrx_launcher.ctl.table import Cell, Column, table
from nvrx_launcher.ft_line import whole_start_s
from nvrx_launcher.help_text import default_text
from nvrx_launcher.option import Given, Option, Source
from nvrx_launcher.options import OPTIONS
from nvrx_launcher.options.groups import HELP
from nvrx_launcher.values import NodeRange

if TYPE_CHECKING:
    from nvrx_launcher.command_line import CommandLine
    from nvrx_launcher.palette import Palette

SCHEMA: Final = 1
_SHOWN: Final = tuple(one for one in OPTIONS if one.group != HELP and one.name != "print_config")
_SOURCES: Final = {
    Source.DEFAULT: "default",
    Source.FILE: "file",
    Source.ENVIRONMENT: "environment",
    Source.COMMAND_LINE: "command line",
}
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./](?:[A-Za-z0-9_./:=,+-]*[A-Za-z0-9_./])?")
_NULLS: Final = frozenset({"null", "~"})


def print_config(line: CommandLine, form: str, palette: Palette, width: int | None) -> str:
    """The options as `table`, `json` or `yaml`; `width` in signs bounds the table, None for as wide as it is."""
    if form == "json":
        return json.dumps(_document(line), indent=2) + "\n"
    if form == "yaml":
        return "\n".join(_file(line)) + "\n"
    columns = (
        Column("OPTION"),
        Column("VALUE", flexible=True),
        Column("GIVEN BY"),
        Column("OUTRANKS", flexible=True, priority=1),
    )
    rows = [_row(option, line, palette) for option in _SHOWN]
    return "\n".join(table(columns, rows, width, palette.quiet)) + "\n"


def _row(option: Option, line: CommandLine, palette: Palette) -> list[Cell]:
    given = line.given[option.name]
    paint = None if given.by_user else palette.quiet
    below = "; ".join(f"{_told(option, one)} ({one.spelled})" for one in line.outranked[option.name])
    by = f"{_SOURCES[given.source]}: {given.spelled}" if given.by_user else _SOURCES[given.source]
    return [Cell(option.name), Cell(_told(option, given), paint), Cell(by, paint), Cell(below)]


def _told(option: Option, given: Given) -> str:
    """A value in words."""
    if not given.by_user:
        return default_text(option) or ("false" if option.is_flag else "-")
    return _without_secrets("true" if option.is_flag and not given.text else given.text)


def _without_secrets(text: str) -> str:
    return blanked(text)


def _document(line: CommandLine) -> dict[str, Any]:
    options = {
        option.name: {
            "value": _data(line.given[option.name].value),
            **_giver(line.given[option.name]),
            "outranks": [{"value": _data(one.value), **_giver(one)} for one in line.outranked[option.name]],
        }
        for option in _SHOWN
    }
    return {"schema": SCHEMA, "kind": "Options", "options": options}


def _giver(given: Given) -> dict[str, str | None]:
    return {"source": _SOURCES[given.source], "spelled": given.spelled if given.by_user else None}


def _data(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _data_of(str(key), item) for key, item in value.items()}
    if isinstance(value, NodeRange):
        return str(value.minimum) if len(set(value)) == 1 else f"{value.minimum}:{value.maximum}"
    if type(value) is tuple:
        return [_data(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return _without_secrets(str(value))


def _data_of(name: str, value: Any) -> Any:
    """What stands under the name of a secret is one, whatever it looks like."""
    return BLANK if NAMES_SECRET.search(name) else _data(value)


def _file(line: CommandLine) -> Iterator[str]:
    """A file that gives what was given here; defaults are comments."""
    for option in _SHOWN:
        given = line.given[option.name]
        if not option.in_file:
            continue
        text = _by_our_name(line, option, given)
        if given.by_user and text is not None:
            by = f"{_SOURCES[given.source]}: {given.spelled}"
            if given.lent and option.name == "hang_startup_timeout":
                by += "; by this name it holds for ranks that never report, too"
            yield f"{option.name}: {_scalar(text)}  # {by}"
        else:
            yield f"# {option.name}: {_told(option, given)}".removesuffix(": -")


def _by_our_name(line: CommandLine, option: Option, given: Given) -> str | None:
    """A value as it is meant without ft_launcher's rules; None where they are what makes it harmless."""
    timeout_s = line.value("hang_timeout")
    if given.lent and timeout_s is None and option.name in ("hang_startup_timeout", "section_limits"):
        return None
    if given.lent and option.name == "hang_startup_timeout":
        return f"{whole_start_s(given.value, timeout_s):g}"
    return _told(option, given)


def _scalar(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NULLS
    return text if plain else json.dumps(text)
