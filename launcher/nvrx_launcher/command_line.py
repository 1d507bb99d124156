"""Reads a command line by the table of options: what was given, by whom, and the training command.

Options end at the script, whose own arguments are left alone. Values: command line, else environment
(an empty variable counts as unset), else the file of `--config`, else the table's default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nvrx_launcher.errors import UsageError
from nvrx_launcher.ft_line import Word, add_settings, settle
from nvrx_launcher.ft_options import BY_SPELLING, FtOption
from nvrx_launcher.option import Given, Inert, Option, Refused, Source, read
from nvrx_launcher.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HELP_NAMES: Final = frozenset({"help", "help_all", "version"})
PRINT_CONFIG: Final = "print_config"
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_SHORT = 2


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`program` is the script (or module, or program) and its arguments.

    `asked_for`: a name of HELP_NAMES, PRINT_CONFIG, or empty. `notices`: lines of options that were given and
    change nothing. `outranked`: by option, what others gave who were outranked, the highest first.
    """

    given: Mapping[str, Given]
    program: tuple[str, ...]
    notices: tuple[str, ...] = ()
    asked_for: str = ""
    outranked: Mapping[str, tuple[Given, ...]] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """The value of an option, whoever gave it."""
        return self.given[name].value

    def as_given(self, name: str) -> str:
        """An option with its value as its giver wrote it, for messages."""
        return str(self.given[name])


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> CommandLine:
    """Read a command line, and the file that it or the environment names.

    Raises:
        UsageError: an unknown option, a bad or missing value, an option that is refused, a file that cannot be
            read, or no script.
    """
    words, program = _split(arguments)
    asked_for = next((option.name for option, *_ in words if option.name in HELP_NAMES), "")
    if asked_for:
        return CommandLine({}, program, asked_for=asked_for)
    givers: dict[str, list[Given]] = {
        option.name: _from_environment(option, environment) for option in OPTIONS
    }
    lent = add_settings(givers, words, environment)
    for option, spelled, value in words:
        if isinstance(option, Option):
            givers[option.name].insert(0, read(option, spelled, value, Source.COMMAND_LINE))
    told = (*_add_file(givers), *settle(givers, lent))
    defaults = {option.name: Given(option.default, Source.DEFAULT, option.shown) for option in OPTIONS}
    given = {name: ones[0] if ones else defaults[name] for name, ones in givers.items()}
    notices = (*_notices(given), *told)
    if given[PRINT_CONFIG].value:
        outranked = {name: tuple(ones[1:]) for name, ones in givers.items()}
        return CommandLine(given, program, notices, PRINT_CONFIG, outranked)
    if not program:
        raise UsageError(
            "no training script is named",
            "nvrx-launch --standalone --nproc-per-node 2 train.py\n"
            "      nvrx-launch --help shows the options",
        )
    return CommandLine(given, program, notices)


def _add_file(givers: dict[str, list[Given]]) -> tuple[str, ...]:
    """Add what the file says below all others, if one is named; what is to be told of it."""
    named = next(iter(givers["config"]), None)
    if named is None:
        return ()
    from nvrx_launcher.config_file import read_file  # noqa: PLC0415 - only who has a file pays for YAML

    found = read_file(named)
    for name, ones in found.given.items():
        givers[name].extend(ones)
    return found.notices


def _split(arguments: Sequence[str]) -> tuple[list[Word], tuple[str, ...]]:
    """Options, those of ft_launcher too, with their spelling and text, and what follows them."""
    ours = {spelling: option for option in OPTIONS for spelling in option.spellings}
    spellings: dict[str, Option | FtOption] = {**ours, **BY_SPELLING}
    found: list[Word] = []
    rest = list(arguments)
    while rest:
        word = rest[0]
        if word == "--":
            return found, tuple(rest[1:])
        if not word.startswith("-") or word == "-":
            break
        rest.pop(0)
        spelled, value = _cut(word)
        option = spellings.get(spelled)
        if option is None:
            raise _unknown(word, spelled, spellings)
        if option.is_flag and value is not None:
            raise UsageError(f"{spelled} takes no value, but {value!r} was given", f"write {spelled} alone")
        if value is None and option.bare:
            value = option.bare
        if not option.is_flag and value is None:
            if not rest or (rest[0].startswith("-") and not _NEGATIVE_NUMBER.fullmatch(rest[0])):
                raise UsageError(f"{spelled} needs a value", f"{spelled} {option.metavar}")
            value = rest.pop(0)
        found.append((option, spelled, value))
        if option.name in HELP_NAMES:
            return found, ()
    if rest[1:2] == ["--"]:  # the first `--` is the launcher's wherever it stands, as with torchrun
        del rest[1]
    return found, tuple(rest)


def _cut(word: str) -> tuple[str, str | None]:
    """The spelling in a word, and the value that is written in the same word."""
    if word.startswith("--"):
        spelled, separator, value = word.partition("=")
        return spelled, value if separator else None
    return word[:_SHORT], word[_SHORT:].removeprefix("=") or None


def _unknown(word: str, spelled: str, spellings: Mapping[str, Option | FtOption]) -> UsageError:
    from difflib import get_close_matches  # noqa: PLC0415 - only a typo pays for it

    meant = [known for known in spellings if known.startswith("--ft") == spelled.startswith("--ft")]
    begins = [known for known in meant if spelled.startswith("--") and known.startswith(spelled)]
    close = begins[:1] or get_close_matches(spelled, meant, n=1, cutoff=0.7)
    if close:
        return UsageError(f"unknown option {spelled}", f"did you mean {spellings[close[0]].shown}?")
    theirs = ", docs/from-nvrx.md those of ft_launcher" if spelled.startswith("--ft") else ""
    hint = f"options of your script come after its name; nvrx-launch --help-all lists ours{theirs}"
    return UsageError(f"unknown option {word}", hint)


def _from_environment(option: Option, environment: Mapping[str, str]) -> list[Given]:
    """What the first variable says that is set."""
    for variable in option.environment:
        value = environment.get(variable, "")
        if value:
            return [read(option, variable, value, Source.ENVIRONMENT)]
    return []


def _notices(given: Mapping[str, Given]) -> tuple[str, ...]:
    lines = []
    for option in OPTIONS:
        one = given[option.name]
        if not one.by_user or one.value is False:
            continue
        if isinstance(option.status, Refused):
            raise UsageError(f"{one.spelled} is not possible: {option.status.reason}", option.status.hint)
        if isinstance(option.status, Inert):
            lines.append(f"{one.spelled} changes nothing: {option.status.line}")
    return tuple(lines)
