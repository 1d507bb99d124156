"""Readers of ft_launcher's values: text in, the text of our option out, None where nothing is asked for."""

from __future__ import annotations

import posixpath

from nvrx_launcher.errors import BadValueError
from nvrx_launcher.values import section_limits as read_limits

_NONE = frozenset({"none", "null", "~", ""})


def any_text(value: str) -> str | None:
    """As it is written; `none` and `null` are nothing."""
    return None if value.strip().lower() in _NONE else value


def seconds(value: str) -> str | None:
    """A number; there is no word that turns a limit off."""
    if value.strip().lower() == "off":
        raise BadValueError("not a number of seconds", "--hang-timeout off looks for no hangs")
    return any_text(value)


def whole_or_off(value: str) -> str | None:
    """Zero and less turn a limit off there, only zero does here."""
    text = any_text(value)
    return "0" if text is not None and text.strip().startswith("-") else text


def folder_of(value: str) -> str | None:
    """The folder of a path."""
    return None if any_text(value) is None else posixpath.dirname(value) or "."


def section_limits(value: str) -> str | None:
    """`name:seconds,name:none` as `name=seconds,name=off`.

    A step of the first iterations has the limit of a section `warmup` there; here the longer one is that of all steps.
    """
    found: dict[str, float | None] = {}
    for part in value.split(","):
        if not part.strip():
            continue
        name, separator, seconds = (piece.strip() for piece in part.rpartition(":"))
        if not separator or not name:
            raise BadValueError(f"{part.strip()!r} is not section:seconds", "such as setup:600,step:180")
        if name in found:
            raise BadValueError(f"{name} is given twice")
        found |= read_limits(f"{name}={any_text(seconds) or 'off'}")
    step_s, warmup_s = found.get("step"), found.get("warmup")
    if step_s is not None and warmup_s is not None:
        found["step"] = max(step_s, warmup_s)
    return ",".join(f"{name}={_seconds(limit_s)}" for name, limit_s in found.items()) or None


def _seconds(limit_s: float | None) -> str:
    return "off" if limit_s is None else str(limit_s).removesuffix(".0")
