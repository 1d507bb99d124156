"""Errors of the hang room."""

from __future__ import annotations


class HangError(Exception):
    """Base of this room's errors."""


class PolicyError(HangError):
    """Time limits that contradict each other. `hint` says how to resolve it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
