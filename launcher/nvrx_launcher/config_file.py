"""Reads `--config FILE`: YAML with options by name, each value as the command line would have it.

Scalars are taken as they are written, not as YAML types: `2:4` stays a range and `off` a word. A value of null
counts as not given. Blocks on the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NoReturn

import yaml

from nvrx_launcher import ft_section, values
from nvrx_launcher.errors import UsageError
from nvrx_launcher.option import Given, Option, Source, read
from nvrx_launcher.options import OPTIONS
from nvrx_launcher.signals import signal_numbers
from nvrx_launcher.streams import streams

MOST_BYTES: Final = 1 << 20
_YAML: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(
    _YAML + kind for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")
)
_NULL: Final = _YAML + "null"
_KINDS: Final = {"scalar": "a single value", "sequence": "a list", "mapping": "a mapping"}

# How a list or a mapping is spelled on the command line, for readers that take several values.
_LISTS: Final = (values.endpoints, values.words, values.modules, values.local_ranks, signal_numbers, streams)
_MAPPINGS: Final[Mapping[Callable[[str], Any], str]] = {
    values.pairs: "=",
    values.section_limits: "=",
    streams: ":",
}

_BY_KEY: Final = {
    spelling.removeprefix("--").replace("-", "_"): option
    for option in OPTIONS
    for spelling in option.spellings
    if spelling.startswith("--")
}


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What a file gives: by option, the highest giver first. `notices`: what in it changes nothing."""

    given: Mapping[str, tuple[Given, ...]]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One `key: value`; `where` is `file:line`."""

    key: str
    value: yaml.Node
    where: str


def read_file(named: Given) -> FileOptions:
    """Read the file that `--config` names.

    Raises:
        UsageError: it cannot be read, is no YAML, or names an option that there is not, twice, or with a value
            that it cannot have.
    """
    path = str(named.value)
    root = _composed(named, path)
    if root is None or root.tag == _NULL:
        return FileOptions({})
    entries = list(_entries(root, path, "options"))
    found = _section(entries, path)
    notices: list[str] = []
    if found is not None and not any(_known(entry.key) for entry in entries):
        others = [entry for entry in entries if entry.key != ft_section.NAME]
        notices.extend(_passed_over(others, found.where))
        entries = []
    given: dict[str, tuple[Given, ...]] = {}
    lines: dict[str, str] = {}
    for entry in entries:
        if entry.key == ft_section.NAME:
            continue
        option = _option(entry)
        if option.name in given:
            _refuse(f"{entry.where}: {entry.key} is given twice", f"see {lines[option.name]}")
        text = _text(entry, option)
        if text is not None:
            spelled = f"{entry.where}: {entry.key}"
            given[option.name], lines[option.name] = (read(option, spelled, text, Source.FILE),), entry.where
    if found is not None:
        told = ft_section.of_rows(found.where, _section_rows(found, path))
        notices.extend(told.notices)
        for name, lent in (*told.given.items(), *((name, (one,)) for name, one in told.assumed.items())):
            given[name] = (*given.get(name, ()), *lent)
    return FileOptions(given, tuple(notices))


def _composed(named: Given, path: str) -> yaml.Node | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a Path would read the whole of a file without an end
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        _refuse(f"{named}: {error.strerror}", "name a YAML file, relative to the current folder")
    if len(data) > MOST_BYTES:
        _refuse(f"{named}: more than {MOST_BYTES} bytes", "a file of options has some lines")
    try:
        node: yaml.Node | None = yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        _refuse(f"{path}{line}: no YAML: {error.problem or error.context}", "one `name: value` a line")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        told = " ".join(str(error).split())
        _refuse(f"{path}: no YAML: {told}", "one `name: value` a line, in UTF-8")
    except RecursionError:
        _refuse(f"{path}: no file of options: it is nested too deeply", "one `name: value` a line")
    return node


def _entries(node: yaml.Node, path: str, what: str) -> Iterator[_Entry]:
    if not isinstance(node, yaml.MappingNode):
        _refuse(
            f"{_where(path, node)}: {what} are `name: value`, one a line, but here is {_KINDS[node.id]}",
            "such as max_restarts: 3",
        )
    for key, value in _with_lent(node, frozenset()):
        if not isinstance(key, yaml.ScalarNode):
            _refuse(f"{_where(path, key)}: a name is expected, but here is {_KINDS[key.id]}")
        yield _Entry(key.value.strip(), value, _where(path, key))


def _with_lent(node: yaml.MappingNode, inside: frozenset[int]) -> list[tuple[yaml.Node, yaml.Node]]:
    """The pairs of a mapping, and those that `<<` lends it, which its own go before (yaml.org/type/merge.html)."""
    merges = [(key, value) for key, value in node.value if key.tag == _MERGE]
    pairs = [pair for pair in node.value if pair not in merges]
    known = {key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)}
    for key, value in merges:
        for lender in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(lender, yaml.MappingNode):
                pairs.append((key, lender))  # no merge after all: it is refused as the name that it is
            elif id(lender) not in inside:
                lent = [
                    pair for pair in _with_lent(lender, inside | {id(node)}) if pair[0].value not in known
                ]
                known.update(name.value for name, _ in lent)
                pairs += lent
    return pairs


def _where(path: str, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def _known(key: str) -> Option | None:
    return _BY_KEY.get(key.replace("-", "_"))


def _option(entry: _Entry) -> Option:
    option = _known(entry.key)
    if option is None:
        _refuse(f"{entry.where}: unknown option {entry.key}", _hint(entry.key))
    if not option.in_file:
        _refuse(
            f"{entry.where}: {entry.key} cannot stand in a file", f"give {option.shown} on the command line"
        )
    return option


def _hint(key: str) -> str:
    named = key.replace("-", "_").strip("_")
    if ft_section.is_setting(setting := named.removeprefix("ft_")):
        return f"a setting of ft_launcher stands in its section: {ft_section.NAME}: {{{setting}: …}}"
    close = get_close_matches(named, _names(), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "nvrx-launch --print-config lists the names"


def _names() -> list[str]:
    return [name for name, option in _BY_KEY.items() if option.in_file]


def _text(entry: _Entry, option: Option) -> str | None:
    """A value as a command line has it; None where it is not given."""
    node = entry.value
    if isinstance(node, yaml.ScalarNode):
        return _scalar(entry, node)
    expected = f"{entry.key}: {option.metavar or 'true or false'}"
    if isinstance(node, yaml.SequenceNode) and option.parse in _LISTS:
        return ",".join(_item(entry, item, expected) for item in node.value)
    joint = _MAPPINGS.get(option.parse)
    if isinstance(node, yaml.MappingNode) and joint is not None:
        parts = [(_item(entry, key, expected), _item(entry, item, expected)) for key, item in node.value]
        return ",".join(f"{key}{joint}{item}" for key, item in parts)
    return _refuse(f"{entry.where}: {entry.key}: {_KINDS[node.id]}, where one value is expected", expected)


def _scalar(entry: _Entry, node: yaml.ScalarNode) -> str | None:
    if node.tag not in _TAGS:
        tag = node.tag.replace(_YAML, "!!")
        _refuse(f"{entry.where}: {entry.key}: the tag {tag} means nothing here", "write the value alone")
    return None if node.tag == _NULL else str(node.value)


def _item(entry: _Entry, node: yaml.Node, expected: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        _refuse(f"{entry.where}: {entry.key}: {_KINDS[node.id]} in a list of single values", expected)
    text = _scalar(entry, node)
    if not text or "," in text:
        _refuse(
            f"{entry.where}: {entry.key}: {text or 'nothing'!r} cannot be one of several values", expected
        )
    return text


def _section(entries: list[_Entry], path: str) -> _Entry | None:
    """The section of ft_launcher, which stands at any depth of mappings and lists."""
    named = [entry for entry in entries if entry.key == ft_section.NAME]
    if len(named) > 1:
        _refuse(f"{named[1].where}: {ft_section.NAME} is given twice", f"see {named[0].where}")
    waiting, seen = list(entries), set[int]()
    while waiting:
        entry = waiting.pop(0)
        if entry.key == ft_section.NAME and entry.value.tag != _NULL:
            return entry
        if id(entry.value) not in seen:
            seen.add(id(entry.value))
            waiting.extend(_inner(entry.value, path))
    return None


def _inner(node: yaml.Node, path: str) -> Iterator[_Entry]:
    """What stands in a mapping by its keys, in a list without one."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield _Entry(str(key.value), value, _where(path, key))
    elif isinstance(node, yaml.SequenceNode):
        yield from (_Entry("", item, _where(path, item)) for item in node.value)


def _section_rows(section: _Entry, path: str) -> list[ft_section.Row]:
    rows: list[ft_section.Row] = []
    lines: dict[str, str] = {}
    for entry in _entries(section.value, path, f"settings of {ft_section.NAME}"):
        if entry.key in lines:
            _refuse(f"{entry.where}: {entry.key} is given twice", f"see {lines[entry.key]}")
        lines[entry.key] = entry.where
        rows.append(ft_section.Row(entry.key, _setting(entry), entry.where))
    return rows


def _setting(entry: _Entry) -> str | None:
    """A setting of ft_launcher as its command line has it; None for null."""
    node = entry.value
    if isinstance(node, yaml.ScalarNode):
        return _scalar(entry, node)
    expected = f"{entry.key}: a single value"
    if isinstance(node, yaml.SequenceNode) and entry.key in ft_section.LISTS:
        return ",".join(_item(entry, item, expected) for item in node.value)
    if isinstance(node, yaml.MappingNode) and entry.key in ft_section.MAPPINGS:
        parts = [(_item(entry, key, expected), _limit(entry, item)) for key, item in node.value]
        return ",".join(f"{key}:{limit}" for key, limit in parts)
    return _refuse(f"{entry.where}: {entry.key}: {_KINDS[node.id]}, where one value is expected", expected)


def _limit(entry: _Entry, node: yaml.Node) -> str:
    """Seconds of a section, or that it has no limit."""
    if isinstance(node, yaml.ScalarNode) and _scalar(entry, node) is None:
        return "none"
    return _item(entry, node, f"{entry.key}: seconds of each section")


def _passed_over(others: list[_Entry], where: str) -> Iterator[str]:
    """A file of somebody else: what is not the section is not ours, unless it looks like a slip."""
    for entry in others:
        if isinstance(entry.value, yaml.ScalarNode) and get_close_matches(
            entry.key, _names(), n=1, cutoff=0.8
        ):
            _option(entry)
    if others:
        names = ", ".join(entry.key for entry in others[:_NAMED]) + (
            " and more" if len(others) > _NAMED else ""
        )
        yield f"{where}: of this file only {ft_section.NAME} is read, not {names}"


_NAMED = 3
_MERGE = "tag:yaml.org,2002:merge"


def _refuse(message: str, hint: str = "") -> NoReturn:
    raise UsageError(message, hint)
