"""The values of variables. One that cannot be used counts as not set, as OpenTelemetry wants it, and is told once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

_MOST = 2**31 - 1
"""More than that no timer and no queue takes."""
_DIGITS = len(str(_MOST))


class Variables:
    """Reads variables; `notices` are lines for the person about those that cannot be used, each once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.notices: list[str] = []

    def say(self, line: str) -> None:
        """A line for the person, unless it was said before: one variable may hold for several signals.

        It quotes what somebody has set: signs that steer a terminal, and bytes that are no UTF-8, are not repeated.
        """
        line = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line)
        if line not in self.notices:
            self.notices.append(line)

    def raw(self, name: str) -> str | None:
        """The value as it is, None where it is not set."""
        return self._environment.get(name)

    def text(self, name: str) -> str:
        """The value without blanks around it; an empty one is one that is not set."""
        return self._environment.get(name, "").strip()

    def first(self, *names: str) -> tuple[str, str]:
        """The first of these that is set, and its value; the last, and "", where none is."""
        for name in names:
            if self.text(name):
                return name, self.text(name)
        return names[-1], ""

    def truth(self, name: str) -> bool:
        """Whether it says true; only `true` does, in any case."""
        word = self.text(name).lower()
        if word not in ("", "true", "false"):
            self.say(f"{name}={word} counts as false, only true is true")
        return word == "true"

    def number(self, name: str, default: float) -> float:
        """A positive number, at most what timers and queues take."""
        text = self.text(name)
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1
        if 0 < value < inf:
            return min(value, _MOST)
        self.say(f"{name}={text} is no positive number, {default:g} is used")
        return default

    def count(self, name: str) -> int | None:
        """A whole number from 0 on, None where there is none."""
        text = self.text(name)
        if text.isascii() and text.isdigit():
            digits = text.lstrip("0")[: _DIGITS + 1]  # of very long ones `int` takes no more
            return min(int(digits or "0"), _MOST)
        if text:
            self.say(f"{name}={text} is no whole number from 0 on, it is left out")
        return None

    def word(self, name: str, known: Collection[str], otherwise: str) -> str:
        """One of the words that are known, in lower case, "" where it is not set or none of them."""
        word = self.text(name).lower()
        if word and word not in known:
            self.say(f"{name}={word} is not known here ({', '.join(known)} are), {otherwise}")
            return ""
        return word
