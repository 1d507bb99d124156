"""What `nvrx` writes: in the form that was asked for, on this terminal or into this pipe."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from nvrx_async.job.codec import SCHEMA, encode
from nvrx_async.job.times import parsed
from nvrx_launcher.palette import Palette, palette_for
from nvrx_launcher.wording import duration, escaped

ROWS_ON_TERMINAL = 50
_NARROW = 72
FORMS = ("table", "json", "yaml", "wide")


@dataclass(frozen=True, slots=True)
class Screen:
    """How to write. `width` is None where nobody cuts lines; `rows` bounds tables, None for all rows."""

    form: str
    palette: Palette
    terminal: bool
    width: int | None
    rows: int | None
    now: datetime

    @property
    def wide(self) -> bool:
        """All columns are wanted."""
        return self.form == "wide"

    @property
    def narrow(self) -> bool:
        """There is room for what matters most only, whatever was asked for."""
        return self.width is not None and self.width < _NARROW

    @property
    def redraws(self) -> bool:
        """Whether a picture may be drawn over the last one."""
        return self.terminal and self.palette_allowed and self.form in ("table", "wide")

    @property
    def palette_allowed(self) -> bool:
        """A terminal that understands more than lines."""
        return os.environ.get("TERM", "") not in ("dumb", "")

    def emit(self, kind: str, record: Any, lines: Callable[[], Iterable[str]]) -> None:
        """Write a record in the form that was asked for; `lines` makes it text."""
        if self.form in ("json", "yaml"):
            self.data(as_data(kind, record))
            return
        self.lines(lines())

    def emit_all(self, kind: str, records: Sequence[Any], lines: Callable[[], Iterable[str]]) -> None:
        """Write a list of records."""
        if self.form in ("json", "yaml"):
            items = [as_data("", record) for record in records]
            self.data({"schema": SCHEMA, "kind": kind, "items": items})
            return
        self.lines(lines())

    def data(self, value: Any) -> None:
        """Write JSON or YAML."""
        if self.form == "json":
            sys.stdout.write(escaped(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()) + "\n")
            return
        from nvrx_launcher.ctl.yaml_text import yaml_text  # noqa: PLC0415 - seldom asked for

        sys.stdout.write(escaped(yaml_text(value)))

    def lines(self, lines: Iterable[str]) -> None:
        """Write lines."""
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()

    def ago(self, utc: str) -> str:
        """How long ago, `-` for never."""
        moment = parsed(utc)
        return duration(max(0.0, (self.now - moment).total_seconds())) if moment is not None else "-"

    def roughly_ago(self, utc: str) -> str:
        """The same in one unit, for lists: `27 min`."""
        return " ".join(self.ago(utc).split()[:2])

    def clock(self, utc: str) -> str:
        """A moment in UTC: the time of today, with the date where it is another day."""
        moment = parsed(utc)
        if moment is None:
            return "-"
        form = "%H:%M:%S" if moment.date() == self.now.date() else "%Y-%m-%d %H:%M:%S"
        return moment.strftime(form)


def json_line(kind: str, record: Any) -> str:
    """A record as one line of JSON."""
    return escaped(orjson.dumps(as_data(kind, record)).decode())


def screen_for(form: str, *, everything: bool = False, rows: int | None = ROWS_ON_TERMINAL) -> Screen:
    """The screen of this process. `everything`: no row is left out."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((80, 24)).columns if terminal or os.environ.get("COLUMNS") else None
    return Screen(
        form=form,
        palette=palette_for(terminal=terminal, environment=os.environ),
        terminal=terminal,
        width=width,
        rows=rows if terminal and not everything else None,
        now=datetime.now(UTC),
    )


def as_data(kind: str, record: Any) -> dict[str, Any]:
    """A record as JSON values, with the version of its schema and what it is."""
    raw: dict[str, Any] = orjson.loads(encode(record))
    schema = raw.pop("schema")
    return {"schema": schema, "kind": kind, **raw} if kind else raw
