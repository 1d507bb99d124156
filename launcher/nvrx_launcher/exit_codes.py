"""What the exit code of `nvrx-launch` means: one table for the code, `--help` and the docs."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Exit codes other than 128 + n (ended by signal n)."""

    DONE = 0
    TRAINING_FAILED = 1
    USAGE = 2
    NEVER_READY = 3
    REQUEUE = 75
    DO_NOT_REQUEUE = 93
    INTERNAL = 101


MEANINGS: Final[tuple[tuple[str, str], ...]] = (
    ("0", "training finished"),
    ("1", "training failed, or its restarts are used up"),
    ("2", "the command line or the configuration is wrong"),
    ("3", "never became ready: etcd not reachable, or nodes missing"),
    ("75", "the infrastructure failed: safe to requeue"),
    ("93", "training failed in a way that would repeat: do not requeue"),
    ("101", "internal error of nvrx-launch, please report it"),
    ("128+n", "ended by signal n, such as 130 for Ctrl-C"),
)
"""Code as shown, and its meaning."""


def meaning(code: int) -> str:
    """One sentence on an exit code; a code outside the table is said to be so."""
    shown = f"{code}"
    for known, text in MEANINGS:
        if known == shown:
            return text
    first_signal_code, last_signal_code = 129, 192
    if first_signal_code <= code <= last_signal_code:
        return f"ended by signal {code - 128}"
    return "not an exit code of nvrx-launch"
