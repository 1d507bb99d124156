"""Options of ft_launcher on the command line and in its variables, put into their place among those who give values.

An option of ours outranks the one of ft_launcher that means the same, by the same giver; else the command line comes
before the environment, and both before a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TypeAlias

from nvrx_launcher.errors import UsageError
from nvrx_launcher.ft_options import FT_OPTIONS, FtOption
from nvrx_launcher.ft_translate import Setting, Translated, translated
from nvrx_launcher.option import Given, Option, Source
from nvrx_launcher.options.failure import DEFAULT_HANG_TIMEOUT_S

Word: TypeAlias = tuple[Option | FtOption, str, str | None]
"""An option as it was written: how it is spelled, and its value, None for a flag."""

Givers: TypeAlias = dict[str, list[Given]]


def add_settings(
    givers: Givers, words: Sequence[Word], environment: Mapping[str, str]
) -> tuple[Translated, ...]:
    """Add what such options give to the variables of ours, which are there already.

    Raises:
        UsageError: a value that there cannot be, or a setting that cannot be kept.
    """
    line = translated("command line", _of_line(words))
    variables = translated("environment", _of_environment(environment))
    for name, ones in line.given.items():
        givers[name][:0] = ones
    for name, ones in variables.given.items():
        givers[name].extend(ones)
    return line, variables


def settle(givers: Givers, told: Sequence[Translated]) -> tuple[str, ...]:
    """When all have given: what settings bring along, below all others; and what is to be told.

    Raises:
        UsageError: an option outranks a setting that asks for more.
    """
    for one in told:
        for name, assumed in one.assumed.items():
            givers[name].append(assumed)
    _one_time_out(givers["workers_stop_timeout"])
    _larger(givers["hang_timeout"])
    _start(givers)
    notices = [*(notice for one in told for notice in one.notices), *_unlimited_there(givers)]
    nodes = next(iter(givers["nnodes"]), None)
    lent = any(one.given or one.notices for one in told) or any(
        one.lent for ones in givers.values() for one in ones
    )
    if lent and nodes is not None and nodes.value.minimum != nodes.value.maximum:
        least, most = nodes.value
        notices.append(
            f"{nodes}: up to {most} nodes train here; {least} that train and {most - least} that wait, "
            f"as ft_launcher has it, are --nnodes {least} --spares {most - least}"
        )
    return tuple(notices)


def _unlimited_there(givers: Givers) -> Iterator[str]:
    """Who limits some of it has not limited the rest there, and may have an evaluation that takes long."""
    limited = [ones[0] for name in ("section_limits", "hang_startup_timeout") if (ones := givers[name])]
    if limited and limited[0].lent and not givers["hang_timeout"]:
        yield (
            f"{limited[0].spelled}: all else has --hang-timeout, {DEFAULT_HANG_TIMEOUT_S:g} s, "
            "and no limit in ft_launcher"
        )


def whole_start_s(first_report_s: float, timeout_s: float) -> float:
    """How long a start may take whose first report has a limit of ft_launcher's, which counts from the client on."""
    return max(first_report_s, 2 * DEFAULT_HANG_TIMEOUT_S, 2 * timeout_s)


def _larger(givers: list[Given]) -> None:
    """Two settings mean --hang-timeout, for different moments: what holds for each may come from another giver."""
    holding: dict[str, Given] = {}
    for one in takewhile(lambda one: one.lent, givers):
        holding.setdefault(one.lent, one)
    if holding:
        largest = max(holding.values(), key=lambda one: float(one.value))
        givers.remove(largest)
        givers.insert(0, largest)


def _start(givers: Givers) -> None:
    """A time-out of beats says nothing of the start, which there has no limit of its own unless one is given.

    So a short one does not shorten the start: it has what it has without any setting, or the longest section's limit.
    """
    beat = next(iter(givers["hang_timeout"]), None)
    if beat is None or not beat.lent or givers["hang_startup_timeout"]:
        return
    sections = next(iter(givers["section_limits"]), None)
    limits = sections.value.values() if sections else ()
    longest_s = max((one for one in limits if one is not None), default=0.0)
    start_s = whole_start_s(longest_s, beat.value)
    givers["hang_startup_timeout"].append(
        Given(start_s, beat.source, beat.spelled, f"{start_s:g}", lent=beat.lent)
    )


def _of_line(words: Sequence[Word]) -> list[Setting]:
    return [
        Setting(option, spelled, "true" if value is None else value, Source.COMMAND_LINE)
        for option, spelled, value in words
        if isinstance(option, FtOption)
    ]


def _of_environment(environment: Mapping[str, str]) -> list[Setting]:
    """An empty variable counts as unset."""
    return [
        Setting(option, variable, environment[variable], Source.ENVIRONMENT)
        for option in FT_OPTIONS
        for variable in option.environment
        if environment.get(variable)
    ]


def _one_time_out(givers: Sequence[Given]) -> None:
    """There is one time-out between SIGTERM and SIGKILL; what is saved in it must not be cut off in silence."""
    if not givers or givers[0].lent:
        return
    ours = givers[0]
    for lent in givers[1:]:
        if lent.lent and lent.value > ours.value:
            raise UsageError(
                f"{lent} and {ours}: there is one time-out here, for restarts and for the end of the job",
                f"give --workers-stop-timeout {lent.text} alone; a rank that ignores SIGTERM is killed at once anyway",
            )
