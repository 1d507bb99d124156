"""Errors of the probe port."""

from __future__ import annotations


class ProbeError(Exception):
    """Base of this room's errors: a question has no answer."""


class UnreachableError(ProbeError):
    """Nobody answers at this address, or not in time."""


class ProtocolError(ProbeError):
    """What came is no part of this conversation: another program answers there, or another version."""


class UntrustedError(ProbeError):
    """The other side does not hold the same job token."""


class QuestionRefusedError(ProbeError):
    """The other side understood the question and does not answer it; the message is its own sentence."""
