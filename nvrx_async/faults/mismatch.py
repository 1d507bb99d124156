"""Ranks that were not in the same collective: which one stands out, from the errors of all. Pure.

Who raises such an error is a witness, as is who waits in vain. gloo says only that what came has another size;
`TORCH_DISTRIBUTED_DEBUG=DETAIL` makes torch say which collective each of two ranks was in. Without that the line of the
script that a rank waited at tells it from the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_async.job.records import PythonError

# gloo: transport/tcp/pair.cc. c10d: ProcessGroupWrapper.cpp.
_MISMATCH = re.compile(
    r"collective mismatch|Detected mismatch between collectives|EnforceNotMet", re.IGNORECASE
)
_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<sizes>\d+ vs \d+)")
_RUNNING = re.compile(
    r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<number>\d+), ?)?"
    r"OpType=(?P<op>\w+)(?:, TensorShape=\[(?P<shape>[\d, ]*)\])?(?:, TensorDtypes=(?P<type>\w+))?"
)
_LEAST = 3
"""Of two that differ nobody can say which one is right."""


@dataclass(frozen=True, slots=True)
class Apart:
    """The one rank that was in another collective than all others: in which, and in which they were."""

    rank: int
    its: str
    theirs: str


def is_mismatch(error: PythonError | None) -> bool:
    """Whether an error says that ranks were not in the same collective."""
    return error is not None and bool(_MISMATCH.search(f"{error.type}: {error.message}"))


def sizes(error: PythonError | None) -> str:
    """Sizes in bytes that did not fit, `8 vs 4`, "" where the error tells none."""
    found = _SIZES.search(error.message) if error else None
    return found["sizes"] if found else ""


def apart(errors: Mapping[int, PythonError | None]) -> Apart | None:
    """The rank that stands out, from the final errors of all ranks, by rank; None if none does, or some tell nothing.

    A rank whose error names no place (an abort in C++) is the one, where it saw a mismatch and all others agree.
    """
    found = _single(_told(errors))
    if found is not None:
        return found
    places = {
        rank: f"{error.file.rpartition('/')[2]}:{error.line}"
        for rank, error in errors.items()
        if error and error.line
    }
    silent = [rank for rank in errors if rank not in places]
    if not silent:
        return _single(places)
    known = Counter(places.values())
    if len(silent) == 1 and is_mismatch(errors[silent[0]]):
        if len(known) == 1 and len(places) >= _LEAST - 1:
            return Apart(silent[0], "", next(iter(known)))
        return _single(places)
    return None


def _told(errors: Mapping[int, PythonError | None]) -> dict[int, str]:
    """What torch says of each rank's collective: `ALLREDUCE of [8] Float`."""
    found: dict[int, str] = {}
    for error in errors.values():
        for one in _RUNNING.finditer(error.message) if error else ():
            shape = f" of [{one['shape']}]" if one["shape"] is not None else ""
            number = f", number {one['number']}" if one["number"] else ""
            found[int(one["rank"])] = f"{one['op']}{shape}{' ' + one['type'] if one['type'] else ''}{number}"
    return {rank: text for rank, text in found.items() if rank in errors}


def _single(values: Mapping[int, str]) -> Apart | None:
    """The one that differs, where all others are alike."""
    counts = Counter(values.values())
    if len(values) < _LEAST or len(counts) != 2:  # noqa: PLR2004 - it, and the others
        return None
    (theirs, _), (its, alone) = counts.most_common()
    if alone != 1:
        return None
    return Apart(next(rank for rank, value in values.items() if value == its), its, theirs)
