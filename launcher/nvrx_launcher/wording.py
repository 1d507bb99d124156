"""Words for people: durations, ranks, and how a rank ended. Pure."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from nvrx_async.job.records import EndedBy, FaultKind, RankEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86400
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    r"|(?:\x1b[\]P_^X]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC and other strings
    r"|\x1b."
)
# C1 signs too (U+009B begins a sequence as ESC [ does), and what turns the direction of a line or hides in it.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)

_SIGNAL_MEANINGS = {
    signal.SIGSEGV: "invalid memory access",
    signal.SIGABRT: "aborted itself",
    signal.SIGBUS: "bus error, often a full /dev/shm",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
}


def duration(seconds: float) -> str:
    """A length of time with two units at most: `6.8 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < 9.95:  # noqa: PLR2004 - from here on tenths say nothing
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return _two(whole // _MINUTE_S, "min", whole % _MINUTE_S, "s")
    if whole < _DAY_S:
        return _two(whole // _HOUR_S, "h", whole % _HOUR_S // _MINUTE_S, "min")
    return _two(whole // _DAY_S, "d", whole % _DAY_S // _HOUR_S, "h")


def _two(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large} {unit} {small} {smaller}" if small else f"{large} {unit}"


def count(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rank_range(first: int, slots: int) -> str:
    """`rank 3` or `ranks 4-7`."""
    return f"rank {first}" if slots == 1 else f"ranks {first}-{first + slots - 1}"


def number_list(numbers: Sequence[int]) -> str:
    """Numbers in order, runs of them joined: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def signal_name(number: int) -> str:
    """`SIGSEGV`; a number without a name as `signal 42`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_it_ended(end: RankEnd) -> str:
    """The end of a rank as a clause: `exited with code 1`, `was killed by SIGSEGV (…)`."""
    if end.signal is not None:
        return f"was killed by {signal_name(end.signal)}{_who_killed(end, end.signal)}"
    if end.exit_code is not None:
        return f"exited with code {end.exit_code}"
    return "could not be started"


def _who_killed(end: RankEnd, number: int) -> str:
    if end.kind is FaultKind.OUT_OF_MEMORY:
        return " (out of memory)"
    if end.by is EndedBy.US:
        return " (sent by us)"
    if number in _SIGNAL_MEANINGS:
        return f" ({_SIGNAL_MEANINGS[signal.Signals(number)]})"
    if end.by is EndedBy.SOMEONE_ELSE:
        return " (not sent by nvrx-launch)"
    return ""


def evidence(end: RankEnd, *, most_lines: int = 5) -> list[str]:
    """What is known beside how a rank ended: its exception and place, else its last lines on stderr."""
    error = end.error
    lines = [clean(end.detail)] if end.detail and _says_more(end) else []
    if error is None:
        lines.extend(f"| {clean(line)}" for line in last_lines(end.last_lines, most_lines))
        return lines
    message = clean(error.message).splitlines() or [""]
    shown = message[:most_lines]
    lines.append(f"{error.type}: {shown[0]}" if shown[0] else error.type)
    lines.extend(f"  {line}" for line in shown[1:])
    if len(message) > most_lines:
        lines.append(f"  ... {count(len(message) - most_lines, 'more line')} in the log")
    if error.file:
        place = f"{error.file}:{error.line}" if error.line else error.file
        lines.append(f"at {place}" + (f" in {error.function}" if error.function else ""))
    return lines


def _says_more(end: RankEnd) -> bool:
    """Whether the detail is more than the exception or the signal that is shown beside it."""
    return end.error is None and (end.signal is None or end.detail != signal_name(end.signal))


def last_lines(lines: Sequence[str], most: int) -> list[str]:
    """The last lines that hold anything."""
    return [line for line in lines if line.strip()][-most:]


def clean(text: str) -> str:
    """Text of a rank without escape sequences and control signs, so that it cannot paint the terminal."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text)).replace("\t", "    ").rstrip()


def one_line(text: str) -> str:
    """The same in one line, for a cell or a list where a line stands for a thing."""
    return " ".join(clean(text).splitlines())


def escaped(text: str) -> str:
    r"""JSON or YAML whose texts hold such signs as `\u009b`: it means the same, and paints no terminal."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, width: int) -> str:
    """The text in one line of at most `width` signs."""
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= width else one_line[: width - 3].rstrip() + "..."
