"""The exception that ended a rank, read from what it wrote to stderr, without any change to the script.

What is read is text for people, so every rule here is a rule of evidence:

- CPython writes a header, frames, and the exception at column 0; chained exceptions follow each other, the
  last one is the one that was not caught. `SyntaxError` of the script itself has no header.
- torch (2.4 and later) prefixes what its `sys.excepthook` writes by `[rank3]: `. A block with that prefix was
  certainly not caught, and exactly the prefixed lines belong to its message.
- A block without the prefix may have been caught and logged. How a rank ended and how much it wrote
  afterwards decide whether the block tells of its death (`rank_error`).
- "Exception ignored in" ends no process. An exception of a thread ends none either, but a rank that ends
  badly without an exception of its own most likely ends for that one.
"""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from nvrx_async.job.records import PythonError

if TYPE_CHECKING:
    from collections.abc import Sequence

TAIL_CHARS = 64 * 1024
"""How much of the end of a rank's stderr is read."""

_LINE_CHARS = 300
_MESSAGE_LINES = 20
_MESSAGE_CHARS = 2000
_FRAMES = 2000

# How many lines of other output may follow a block that may have been caught, by how the rank ended.
# Exit 1 is what CPython returns for an uncaught exception: clean-up at exit may say a lot after it.
_AFTER_EXIT_1 = 200
_AFTER_OTHER_EXIT = 20
_AFTER_CRASH = 20
_AFTER_KILL = 0
_CRASHES = frozenset(
    {signals.SIGABRT, signals.SIGSEGV, signals.SIGBUS, signals.SIGFPE, signals.SIGILL, signals.SIGTRAP}
)

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[@-Z\\^_]?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
_RANK = re.compile(r"\[rank\d+\]:(?: |$)")
_HEADER = "Traceback (most recent call last):"
_RICH_HEADER = re.compile(r"[╭┌].*Traceback \(most recent call last\)")
_RICH_BODY = re.compile(r"[│╭╰┌└|]")
_RICH_FRAME = re.compile(r"│\s*(?P<file>[^\s:]+):(?P<line>\d+) in (?P<function>\S+)")
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_NAME = r"[A-Za-z_]\w*(?:\.(?:<locals>|[A-Za-z_]\w*))*"
_EXCEPTION = re.compile(rf"(?P<type>{_NAME})(?::(?: (?P<message>.*))?)?$")
_LOOKS_RAISED = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Warning|Group|Timeout|Failure|Iteration|Empty|Full)$"
)
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL", "NOTSET"})
_THREAD = re.compile(r"Exception in thread ")
_IGNORED = re.compile(r"Exception ignored (?:in|while|on)\b")
_CHAIN = re.compile(r"(?:During handling of|The above exception was)\b")
_GROUP_HEADER = re.compile(r"\s*\+ Exception Group Traceback \(most recent call last\):$")
_GROUP_LINE = re.compile(r"\s*(?:\| ?|\+-[-+]|\+ )")
_TERMINATE = re.compile(r"terminate called after throwing an instance of '(?P<type>[^']+)'")
_WHAT = re.compile(r"\s*what\(\):\s*(?P<message>.*)")
_RUNTIME_NOISE = re.compile(
    r"\[[DIWEF]\d{4} |frame #\d+: |Exception raised from |<omitting python frames>|terminate called |"
    r"\s*what\(\): |Fatal Python error|Extension modules:|Current thread 0x|Thread 0x"
)
_LOG_LINE = re.compile(
    r"\[?\d{4}[-/]\d\d[-/]\d\d|\[?\d\d:\d\d:\d\d|\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|wandb: |"
    r"\S+:\d+: \w*Warning: |\s*\d+%\|"
)
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d[\d.]*/|/torch/|<frozen |<__array_function__"
)
_SYNTAX = frozenset({"SyntaxError", "IndentationError", "TabError"})


class Origin(Enum):
    """Where an exception was raised, as the text around it tells."""

    MAIN = "main"
    THREAD = "thread"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    ranked: bool


@dataclass(frozen=True, slots=True)
class _Frame:
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class _Block:
    """One exception. `certain`: not caught, beyond doubt. `after`: lines of other output that follow."""

    error: PythonError
    origin: Origin
    certain: bool
    after: int = 0


def last_exception(stderr: str) -> PythonError | None:
    """Find the final exception in the end of a rank's stderr, None if there is none.

    An exception of a thread is returned only if there is none of the main thread, one that Python says it
    ignored never. Whether the rank ended by it is not asked: see `rank_error`.
    """
    block = _final(_lines(stderr))
    return block.error if block else None


def rank_error(stderr_tail: str, exit_code: int | None, signal: int | None) -> PythonError | None:
    """Find the exception that a rank ended by, None if it did not end by one.

    Args:
        stderr_tail: the end of what it wrote to stderr; only the last `TAIL_CHARS` are read.
        exit_code: its exit code, None if a signal ended it.
        signal: the number of the signal that ended it, None if it exited.
    """
    if exit_code == 0:
        return None
    lines = _lines(stderr_tail)
    block = _final(lines)
    if block and (block.certain or block.after <= _tolerance(exit_code, signal)):
        return block.error
    return _terminated(lines) if signal == signals.SIGABRT else None


def last_lines(stderr: str, n: int) -> tuple[str, ...]:
    """Return the last `n` lines that are not empty, for display: no control sequences, ≤ 300 characters."""
    shown = [_shortened(line.text.rstrip(), _LINE_CHARS) for line in _lines(stderr) if line.text.strip()]
    return tuple(shown[-n:]) if n > 0 else ()


def _tolerance(exit_code: int | None, signal: int | None) -> int:
    if signal is not None:
        return _AFTER_CRASH if signal in _CRASHES else _AFTER_KILL
    return _AFTER_EXIT_1 if exit_code == 1 else _AFTER_OTHER_EXIT


def _lines(text: str) -> list[_Line]:
    cut = len(text) > TAIL_CHARS
    tail = _CONTROL.sub("", text[-TAIL_CHARS:])
    raw = tail.split("\n")
    # The first line of a cut text is only the end of one.
    return [_line(line) for line in (raw[1:] if cut and len(raw) > 1 else raw)]


def _line(raw: str) -> _Line:
    # A progress bar returns to the start of its line: what was written last is what stands there.
    text = raw.rstrip("\r").rpartition("\r")[2]
    prefix = _RANK.match(text)
    return _Line(text[prefix.end() :], ranked=True) if prefix else _Line(text, ranked=False)


def _final(lines: Sequence[_Line]) -> _Block | None:
    blocks = _blocks(lines)
    for origin in (Origin.MAIN, Origin.THREAD):
        found = [(block, end) for block, end in blocks if block.origin is origin]
        if found:
            block, end = found[-1]
            return replace(block, after=_other_output(lines[end:]))
    return None


def _blocks(lines: Sequence[_Line]) -> list[tuple[_Block, int]]:
    """All exceptions in the text, each with the index of the line behind it."""
    blocks: list[tuple[_Block, int]] = []
    at = 0
    while at < len(lines):
        block, end = _block(lines, at, _origin(lines, at, blocks))
        if block:
            blocks.append((block, end))
        at = max(end, at + 1)
    return blocks


def _origin(lines: Sequence[_Line], at: int, blocks: Sequence[tuple[_Block, int]]) -> Origin:
    """Where what begins on line `at` was raised: the line before says so, or what it is chained to."""
    before = lines[at - 1].text if at else ""
    if lines[at].ranked:
        return Origin.MAIN
    if _THREAD.match(before):
        return Origin.THREAD
    if _IGNORED.match(before):
        return Origin.IGNORED
    chained = any(_CHAIN.match(line.text) for line in lines[max(0, at - 2) : at])
    return blocks[-1][0].origin if chained and blocks else Origin.MAIN


def _block(lines: Sequence[_Line], at: int, origin: Origin) -> tuple[_Block | None, int]:
    """Read the exception whose text begins on line `at`, if one does; also where to read on."""
    text = lines[at].text
    if _GROUP_HEADER.match(text):
        return _group(lines, at, origin)
    if text.endswith(_HEADER) or _RICH_HEADER.match(text):
        return _plain(lines, at + 1, origin, headless=False)
    if _FRAME.match(text):
        return _plain(lines, at, origin, headless=True)
    return None, at + 1


def _other_output(rest: Sequence[_Line]) -> int:
    """Count the lines behind an exception that are not written by a runtime while its process dies."""
    after, at = 0, 0
    while at < len(rest):
        text = rest[at].text
        if text.endswith(_HEADER) or _FRAME.match(text):
            at = _skip_frames(rest, at + 1)
        elif text.strip() and not _dying(text):
            after += 1
        at += 1
    return after


def _dying(text: str) -> bool:
    return bool(
        _RUNTIME_NOISE.match(text) or _IGNORED.match(text) or _THREAD.match(text) or _CHAIN.match(text)
    )


def _skip_frames(lines: Sequence[_Line], at: int) -> int:
    """Return the index of the line that names the exception, or of the last line."""
    while at < len(lines) - 1 and lines[at].text[:1] in ("", " "):
        at += 1
    return at


def _plain(lines: Sequence[_Line], at: int, origin: Origin, *, headless: bool) -> tuple[_Block | None, int]:
    frames: list[_Frame] = []
    foreign = 0
    while at < len(lines):
        text = lines[at].text
        frame = _FRAME.match(text) or _RICH_FRAME.match(text)
        if frame and len(frames) < _FRAMES:
            frames.append(_Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
        elif text.endswith(_HEADER) or _GROUP_HEADER.match(text):
            return None, at
        elif text[:1] not in ("", " ", "\t") and not _RICH_BODY.match(text):
            raised = _raised(text, strict=headless or foreign > 0)
            if raised:
                message, end = _message(lines, at, raised["message"] or "")
                error = _error(raised["type"], message, frames)
                return _Block(error, origin, certain=lines[at].ranked and origin is Origin.MAIN), end
            # Output of another thread may stand between frames and exception; much of it is the end.
            foreign += 1
            if foreign > _MESSAGE_LINES:
                return None, at
        at += 1
    return None, at


def _raised(text: str, *, strict: bool) -> re.Match[str] | None:
    found = _EXCEPTION.match(text)
    if not found or found["type"] in _LEVELS:
        return None
    return found if not strict or _LOOKS_RAISED.search(found["type"]) else None


def _message(lines: Sequence[_Line], at: int, first: str) -> tuple[str, int]:
    """Collect a message that begins on line `at`; also where the lines that are certainly part of it end."""
    message, certain = [first], at + 1
    ranked = lines[at].ranked
    for index in range(at + 1, min(at + _MESSAGE_LINES, len(lines))):
        line = lines[index]
        if _ends_message(line, ranked=ranked):
            break
        message.append(line.text)
        if ranked and line.ranked:
            certain = index + 1
    return _shortened("\n".join(message).strip(), _MESSAGE_CHARS), certain


def _ends_message(line: _Line, *, ranked: bool) -> bool:
    text = line.text
    if ranked != line.ranked and text.strip():
        return True
    return bool(
        text.endswith(_HEADER)
        or _GROUP_HEADER.match(text)
        or _dying(text)
        or _LOG_LINE.match(text)
        or _RICH_HEADER.match(text)
    )


def _error(kind: str, message: str, frames: Sequence[_Frame]) -> PythonError:
    if not frames:
        return PythonError(kind, message)
    own = [frame for frame in frames if not _LIBRARY.search(frame.file)]
    place = frames[-1] if kind in _SYNTAX or not own else own[-1]
    return PythonError(kind, message, place.file, place.line, place.function)


def _group(lines: Sequence[_Line], at: int, origin: Origin) -> tuple[_Block | None, int]:
    """Read an exception group. One that holds a single exception stands for that exception."""
    end = at + 1
    while end < len(lines) and _GROUP_LINE.match(lines[end].text):
        end += 1
    indents = [_indent(line.text) for line in lines[at + 1 : end] if line.text.lstrip().startswith("|")]
    if not indents:
        return None, end
    outer = [line for line in lines[at + 1 : end] if _indent(line.text) == indents[0] and _is_bar(line)]
    inner = [line for line in lines[at + 1 : end] if _indent(line.text) > indents[0]]
    own = _plain([_unbarred(line) for line in outer], 0, origin, headless=False)[0]
    leaves = _leaves([_unbarred(line) for line in inner])
    if len(leaves) == 1:
        own = _Block(leaves[0], origin, certain=False)
    if own is None:
        return None, end
    error = own.error
    if len(leaves) > 1:
        parts = "; ".join(f"{leaf.type}: {leaf.message}" if leaf.message else leaf.type for leaf in leaves)
        error = replace(error, message=_shortened(f"{error.message}: {parts}", _MESSAGE_CHARS))
    return _Block(error, origin, certain=lines[at].ranked and origin is Origin.MAIN), end


def _leaves(lines: Sequence[_Line]) -> list[PythonError]:
    """Read what a group holds: per exception an optional header with frames, then its name and message."""
    leaves: list[PythonError] = []
    frames: list[_Frame] = []
    for line in lines:
        frame = _FRAME.match(line.text)
        if frame:
            frames.append(_Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
            continue
        raised = _raised(line.text, strict=True)
        if raised and not raised["type"].endswith("Group"):
            leaves.append(_error(raised["type"], raised["message"] or "", frames))
        if raised or line.text.endswith(_HEADER):
            frames = []
    return leaves


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _is_bar(line: _Line) -> bool:
    return line.text.lstrip().startswith("|")


def _unbarred(line: _Line) -> _Line:
    return _Line(_GROUP_LINE.sub("", line.text, count=1), line.ranked)


def _terminated(lines: Sequence[_Line]) -> PythonError | None:
    """Find the C++ exception that `std::terminate` named last."""
    for index in range(len(lines) - 1, -1, -1):
        found = _TERMINATE.search(lines[index].text)
        if found:
            what = _WHAT.match(lines[index + 1].text) if index + 1 < len(lines) else None
            return PythonError(found["type"], _shortened(what["message"], _MESSAGE_CHARS) if what else "")
    return None


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
