"""From settings of ft_launcher, as one giver wrote them, to options of ours, notes for people, and refusals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nvrx_launcher.errors import BadValueError, UsageError
from nvrx_launcher.ft_options import Becomes, FtOption
from nvrx_launcher.option import Given, Inert, Refused, Source, read
from nvrx_launcher.options import OPTIONS

NO_PROGRESS_LIMIT: Final = "3"
"""What ft_launcher takes for `max_no_progress_cycles` where a `checkpoint_iteration_file` is given and no number."""

_OURS: Final = {option.name: option for option in OPTIONS}
_HANG: Final = "hang_timeout"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is written: `text` is None for null. `spelled`: as in messages."""

    option: FtOption
    spelled: str
    text: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Translated:
    """What settings give by options of ours, the highest giver first; and at the end of all, `assumed`."""

    given: Mapping[str, tuple[Given, ...]]
    assumed: Mapping[str, Given]
    notices: tuple[str, ...]


def translated(where: str, settings: Sequence[Setting]) -> Translated:
    """The settings of one giver; where a setting comes twice the later one counts. `where` begins the notes.

    Raises:
        UsageError: one that cannot be kept, or a value that there cannot be.
    """
    last = {one.option.name: one for one in settings}.values()
    _refuse(last)
    given: dict[str, list[Given]] = {}
    for one in last:
        if isinstance(one.option.meaning, Becomes) and (text := _text(one)) is not None:
            given.setdefault(one.option.meaning.option, []).append(
                _given(one, one.option.meaning.option, text)
            )
    return Translated(
        {name: tuple(ones) for name, ones in given.items()}, _assumed(last), tuple(_notices(where, last))
    )


def _text(one: Setting) -> str | None:
    """The value as our option takes it."""
    if one.text is None or one.text.strip().lower() in (harmless.lower() for harmless in one.option.harmless):
        return None
    try:
        return one.option.read(one.text)
    except BadValueError as error:
        raise UsageError(f"{_spelled(one)}: {error.reason}", error.hint) from error


def _given(one: Setting, name: str, text: str) -> Given:
    found = read(_OURS[name], one.spelled, text, one.source)
    return Given(found.value, found.source, found.spelled, found.text, lent=one.option.name)


def _spelled(one: Setting) -> str:
    return str(Given(None, one.source, one.spelled, one.text or ""))


def _refuse(settings: Iterable[Setting]) -> None:
    """All that cannot be kept, in one answer."""
    refused = [
        (one, one.option.meaning)
        for one in settings
        if isinstance(one.option.meaning, Refused) and _text(one) is not None
    ]
    if len(refused) == 1:
        one, meaning = refused[0]
        raise UsageError(f"{_spelled(one)} is not possible: {meaning.reason}", meaning.hint)
    if refused:
        lines = "".join(f"\n  {_spelled(one)}: {meaning.reason}" for one, meaning in refused)
        hints = "".join(f"\n  {one.spelled}: {meaning.hint}" for one, meaning in refused)
        raise UsageError(f"{len(refused)} settings are not possible:{lines}", hints.lstrip())


def _assumed(settings: Iterable[Setting]) -> dict[str, Given]:
    """Defaults of ft_launcher that a setting brings along."""
    for one in settings:
        if one.option.name == "checkpoint_iteration_file" and _text(one) is not None:
            limit = _given(one, "no_progress_limit", NO_PROGRESS_LIMIT)
            return {"no_progress_limit": limit}
    return {}


def _notices(where: str, settings: Iterable[Setting]) -> Iterator[str]:
    nothing: dict[str, list[str]] = {}
    anyway: list[str] = []
    for one in settings:
        if one.text is None:
            continue
        meaning, text = one.option.meaning, _text(one)
        if isinstance(meaning, Inert):
            nothing.setdefault(meaning.line, []).append(_short(one))
        elif isinstance(meaning, Refused):
            anyway.append(_short(one))
        elif text is None:
            off = "; --hang-timeout off turns it off" if meaning.option == _HANG else ""
            yield f"{_spelled(one)} turns nothing off: {_OURS[meaning.option].shown} is as without it{off}"
    if nothing:
        told = "; ".join(f"{', '.join(names)} ({line})" for line, names in nothing.items())
        yield f"{where}: these change nothing: {told}"
    if anyway:
        yield f"{where}: these ask for what happens anyway: {', '.join(anyway)}"


def _short(one: Setting) -> str:
    """As it is known where the place has been told."""
    return one.option.name if one.source is Source.FILE else one.spelled
