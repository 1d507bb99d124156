"""Faults: what ended a rank, read from its exit status and its stderr. Pure; no torch, no I/O."""

from nvrx_async.faults.classify import (
    Classified,
    EndFacts,
    classify,
    classify_error,
    missed_ranks,
    peer,
    signal_name,
)
from nvrx_async.faults.culprit import HANG, Blame, Frame, RankState, culprit
from nvrx_async.faults.culprit import as_extra as state_as_extra
from nvrx_async.faults.culprit import from_extra as state_from
from nvrx_async.faults.fingerprint import deterministic, fingerprint
from nvrx_async.faults.mismatch import Apart, apart, is_mismatch, sizes
from nvrx_async.faults.traceback import TAIL_CHARS, last_exception, last_lines, rank_error

__all__ = [
    "HANG",
    "TAIL_CHARS",
    "Apart",
    "Blame",
    "Classified",
    "EndFacts",
    "Frame",
    "RankState",
    "apart",
    "classify",
    "classify_error",
    "culprit",
    "deterministic",
    "fingerprint",
    "is_mismatch",
    "last_exception",
    "last_lines",
    "missed_ranks",
    "peer",
    "rank_error",
    "signal_name",
    "sizes",
    "state_as_extra",
    "state_from",
]
