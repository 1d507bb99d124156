"""What a check found. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `hint`: what to do, empty where nothing is to be done."""

    what: str
    grade: Grade
    text: str
    hint: str = ""


def numbers(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version: `2.28.9+cu12` is (2, 28, 9)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
