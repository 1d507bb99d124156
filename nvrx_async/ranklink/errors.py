"""Errors of the rank link."""

from __future__ import annotations


class RankLinkError(Exception):
    """Base of this room's errors."""


class FrameError(RankLinkError):
    """What came over the socket is no frame; the connection is of no use any more."""


class MessageError(RankLinkError):
    """A frame holds no message that this version knows."""


class PageError(RankLinkError):
    """A file is no page of this version: rank and agent run different versions of nvrx-async."""


class RankMonitorClientError(RankLinkError):
    """A call of `rank_legacy` in the wrong order; NVIDIA's name for it."""


class InjectedError(RankLinkError):
    """The exception that `NVRX_FAULTS` ordered."""


class OrderError(RankLinkError):
    """`NVRX_FAULTS` cannot be read; the message says where."""
