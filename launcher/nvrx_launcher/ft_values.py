"""Readers of ft_launcher's values: text in, the text of our option out, None where nothing is asked for."""

from __future__ import annotations

import posixpath

from nvrx_launcher.errors import BadValueError
from nvrx_launcher.values import section_limits as read_limits

_NONE = frozenset({"none", "null", "~", ""})


def any_text(value: str) -> str | None:
    """As it is written; `none` and `null` are nothing."""
    return None if value.strip().lower() in _NONE else value


def whole_or_off(value: str) -> str | None:
    """Zero and less turn a limit off there, only zero does here."""
    text = any_text(value)
    return "0" if text is not None and text.strip().startswith("-") else text


def folder_of(value: str) -> str | None:
    """The folder of a path."""
    return None if any_text(value) is None else posixpath.dirname(value) or "."


def section_limits(value: str) -> str | None:
    """`name:seconds,name:none` as `name=seconds`; a section without a limit has that of all others here.

    A step of the first iterations has the limit of a section `warmup` there; here the longer one is that of all steps.
    """
    found: dict[str, float] = {}
    for part in value.split(","):
        if not part.strip():
            continue
        name, separator, seconds = (piece.strip() for piece in part.rpartition(":"))
        if not separator or not name:
            raise BadValueError(f"{part.strip()!r} is not section:seconds", "such as setup:600,step:180")
        if any_text(seconds) is not None:
            found |= read_limits(f"{name}={seconds}")
    if {"step", "warmup"} <= found.keys():
        found["step"] = max(found["step"], found["warmup"])
    return ",".join(f"{name}={limit_s}".removesuffix(".0") for name, limit_s in found.items()) or None
