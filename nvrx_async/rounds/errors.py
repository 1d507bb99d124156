"""Errors of the rounds room."""

from __future__ import annotations


class RoundError(Exception):
    """Base of this room's errors."""
