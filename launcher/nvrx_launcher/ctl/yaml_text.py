"""JSON values as YAML 1.2, for eyes: every text that could be read as something else is quoted. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*(?: [A-Za-z0-9_./@+(),;-]+)*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})


def yaml_text(value: Any) -> str:
    """The value as one document."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(str(key))}:", item)
    elif isinstance(value, list) and value:
        for item in value:
            yield from _item(item)
    else:
        yield _scalar(value)


def _entry(head: str, item: Any) -> Iterator[str]:
    if isinstance(item, dict | list) and item:
        yield head
        yield from (f"  {line}" for line in _lines(item))
    else:
        yield f"{head} {_scalar(item)}"


def _item(item: Any) -> Iterator[str]:
    lines = list(_lines(item))
    yield f"- {lines[0]}"
    yield from (f"  {line}" for line in lines[1:])


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
