"""Texts and records without what looks like a secret. Pure. Rather too much is left out than too little."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

BLANK = "(left out)"
_WORDS = (
    r"(?:token(?!iz)|passw(?:or)?d|\bpwd|secret|credential|cookie|authorization|headers"
    r"|api[-_]?key|[-_]key|[-_]key[-_]id)"
)
NAMES_SECRET = re.compile(rf"(?i){_WORDS}|auth")
"""Finds names of what is a secret."""
_VALUE = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;\"']+"
# A header takes the rest of its line, or of its quotes: `Authorization: Bearer x`.
_HEADER = re.compile(r"(?i)((?:authorization|cookie|headers)[\"']?\s*[=:]\s*)([\"']?)[^\n\"']+")
_ASSIGNED = re.compile(rf"(?i)([\w.-]*{_WORDS}[\w.-]*[\"']?\s*[=:]\s*)({_VALUE})")
_OPTION = re.compile(rf"(?i)((?<!\S)--?[\w-]*{_WORDS}[\w-]*\s+)({_VALUE})")
_SAID = re.compile(
    rf"(?i)(\b(?:bearer|basic|[\w-]*(?:token|password|passwd|secret|api[-_]?key))\s+)({_VALUE})"
)
_IN_URL = re.compile(r"(\w+://)[^/\s@\"']+@")
# Shapes of well-known services: Hugging Face, GitHub, GitLab, OpenAI, NVIDIA, Slack, AWS, JSON web tokens.
_SHAPES = re.compile(
    r"\b(?:(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|nvapi-|xox[abprs]-)[\w-]{8,}|A[KS]IA[0-9A-Z]{8,}"
    r"|eyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?)"
)


def blanked(text: str) -> str:
    """A text without what looks like a secret: `--token x`, `password=x`, `https://user:word@host`, `Bearer x`."""
    text = _HEADER.sub(rf"\1\2{BLANK}", _IN_URL.sub(rf"\1{BLANK}@", text))
    for pattern in (_ASSIGNED, _OPTION, _SAID):
        text = pattern.sub(_left_out, text)
    return _SHAPES.sub(BLANK, text)


def blanked_lines(text: str) -> str:
    """The same for lines of which some are JSON: they stay JSON."""
    return "".join(f"{_line(line)}\n" for line in text.splitlines())


def blanked_data(value: Any, name: str = "") -> Any:
    """The same for JSON values; what stands under the name of a secret is left out, but for the seal's token."""
    if isinstance(value, Mapping):
        return {key: blanked_data(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return _list(value)
    if isinstance(value, str):
        return BLANK if NAMES_SECRET.search(name) and name != "token" else blanked(value)
    return value


def blanked_command(words: Sequence[str]) -> tuple[str, ...]:
    """The same for a command line, of which a word may be the secret of the one before it."""
    return tuple(_list(list(words)))


def _left_out(found: re.Match[str]) -> str:
    quote = found[2][0] if found[2][0] in "\"'" else ""
    inside = found[2].strip("\"'")
    return found[0] if inside.startswith(("(left", "-")) else f"{found[1]}{quote}{BLANK}{quote}"


def _line(line: str) -> str:
    try:
        return (
            orjson.dumps(blanked_data(orjson.loads(line))).decode() if line.startswith("{") else blanked(line)
        )
    except orjson.JSONDecodeError:
        return blanked(line)


def _list(values: list[Any]) -> list[Any]:
    """A command line: what follows an option that names a secret is one."""
    found, after_secret = [], False
    for value in values:
        option = isinstance(value, str) and value.startswith("-")
        found.append(BLANK if after_secret and isinstance(value, str) and not option else blanked_data(value))
        after_secret = (
            isinstance(value, str) and option and "=" not in value and bool(NAMES_SECRET.search(value))
        )
    return found
