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
from nvrx_async.faults.fingerprint import deterministic, fingerprint
from nvrx_async.faults.traceback import TAIL_CHARS, last_exception, last_lines, rank_error

__all__ = [
    "TAIL_CHARS",
    "Classified",
    "EndFacts",
    "classify",
    "classify_error",
    "deterministic",
    "fingerprint",
    "last_exception",
    "last_lines",
    "missed_ranks",
    "peer",
    "rank_error",
    "signal_name",
]
