"""What an option is, and where its value came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from nvrx_launcher.errors import BadValueError, UsageError
from nvrx_launcher.values import switch, text

if TYPE_CHECKING:
    from collections.abc import Callable


class Source(IntEnum):
    """Who gave a value; a higher one outranks a lower one."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True, slots=True)
class Works:
    """The option does what its text says."""


@dataclass(frozen=True, slots=True)
class Inert:
    """The option is taken and changes nothing; `line` tells the person why that is harmless."""

    line: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The job would not be what was asked for: `reason` says so, `hint` names the way to get it."""

    reason: str
    hint: str


Status: TypeAlias = Works | Inert | Refused
WORKS = Works()


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table of options.

    `spellings`: the first is the one that is shown. `environment`: variables that give the value when the
    command line does not, in order. `metavar`: how the value is called, empty for a flag. `default_text`:
    the default in words where the value does not say it. `common`: shown by `--help`. `bare`: the value where the
    option stands alone; another one is written in the same word, after `=`. `in_file`: whether `--config` may
    name it.
    """

    name: str
    spellings: tuple[str, ...]
    group: str
    doc: str
    metavar: str = ""
    parse: Callable[[str], Any] = text
    default: Any = None
    default_text: str = ""
    environment: tuple[str, ...] = ()
    status: Status = WORKS
    common: bool = False
    bare: str = ""
    in_file: bool = True

    @property
    def usage(self) -> str:
        """What is written after a spelling: ` VALUE`, `[=VALUE]`, or nothing."""
        if self.bare:
            return f"[={self.metavar}]"
        return f" {self.metavar}" if self.metavar else ""

    @property
    def is_flag(self) -> bool:
        """Whether the option takes no value."""
        return not self.metavar

    @property
    def shown(self) -> str:
        """The spelling used in messages and documents."""
        return self.spellings[0]


@dataclass(frozen=True, slots=True)
class Given:
    """The value of an option in this run.

    `spelled` is how its giver wrote the option or the variable, with file and line where it stands in one; `text`
    how the giver wrote the value. `lent`: the setting of ft_launcher that stands for the option, empty for none.
    """

    value: Any
    source: Source
    spelled: str
    text: str = ""
    lent: str = ""

    @property
    def by_user(self) -> bool:
        """Whether a person gave it, rather than the table."""
        return self.source is not Source.DEFAULT

    def __str__(self) -> str:
        """Option and value as their giver wrote them, for messages."""
        return f"{self.spelled}{_JOINTS[self.source]}{self.text}" if self.text else self.spelled


_JOINTS = {Source.DEFAULT: " ", Source.FILE: ": ", Source.ENVIRONMENT: "=", Source.COMMAND_LINE: " "}


def read(option: Option, spelled: str, value: str | None, source: Source) -> Given:
    """What somebody gave for an option; None for a flag that stands alone.

    Raises:
        UsageError: the text cannot be a value of this option.
    """
    if value is None:
        return Given(value=True, source=source, spelled=spelled)
    try:
        return Given(option.parse(value), source, spelled, value)
    except BadValueError as error:
        hint = error.hint or f"{option.shown} {option.metavar}"
        if source is Source.FILE:
            hint = hint.replace(f"{option.shown} ", f"{option.name}: ") if option.metavar else "true or false"
        told = Given(None, source, spelled, "" if error.secret else value)
        raise UsageError(f"{told}: {error.reason}", hint) from error


def both(long: str, *short: str) -> tuple[str, ...]:
    """The long spelling with hyphens, the short ones, and the long one with underscores."""
    underscored = "--" + long.removeprefix("--").replace("-", "_")
    return (long, *short) if underscored == long else (long, *short, underscored)


def _variable(prefix: str, long: str) -> str:
    return prefix + long.removeprefix("--").replace("-", "_").upper()


def torchrun(long: str, *short: str, environment: bool = True, **row: Any) -> Option:
    """A row for an option that torchrun has, with its variable PET_<NAME>."""
    name = _variable("", long).lower()
    variables = (_variable("PET_", long),) if environment else ()
    return _row(name, both(long, *short), variables, row)


def ours(long: str, **row: Any) -> Option:
    """A row for an option that torchrun does not have, with its variable NVRX_<NAME>."""
    name = _variable("", long).lower()
    return _row(name, both(long), (_variable("NVRX_", long),), row)


def _row(name: str, spellings: tuple[str, ...], variables: tuple[str, ...], row: dict[str, Any]) -> Option:
    row.setdefault("environment", variables)
    if "metavar" not in row:
        row = {"parse": switch, "default": False, **row}
    return Option(name=name, spellings=spellings, **row)
