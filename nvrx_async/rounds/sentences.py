"""Faults as sentences, the same words wherever one is named."""

from __future__ import annotations

from nvrx_async.faults import signal_name
from nvrx_async.job.records import EndedBy, FaultKind, RankEnd, Seat
from nvrx_async.job.where import where


def rank_ended(end: RankEnd) -> str:
    """How a rank ended, behind its name: `raised ValueError: bad shard (train.py:41)`."""
    detail = f": {end.detail}" if end.detail else ""
    by_kind = {
        FaultKind.HANG: f"hung{detail}",
        FaultKind.HARDWARE: f"met a hardware fault{detail}",
        FaultKind.OUT_OF_MEMORY: "was killed by the kernel, out of memory",
        FaultKind.FENCED: "was killed by its keeper, since its node could not renew its lease in time",
        FaultKind.STORAGE: f"failed on storage: {_raised(end) if end.error else end.detail}",
    }
    if end.exit_code is None and end.signal is None:
        return f"could not be started{detail}"
    how = by_kind.get(end.kind) if end.kind else None
    return how or _status(end)


def node_fault(kind: FaultKind, node: str, detail: str) -> str:
    """One node's fault as a sentence: `node b (host h1) lost: its lease ended`. `node` is as `where` has it."""
    heads = {
        FaultKind.NODE_LOST: f"node {node} lost",
        FaultKind.NODE_LEFT: f"node {node} left",
        FaultKind.KEEPER_LOST: f"node {node} lost the keeper of its ranks",
        FaultKind.FENCED: f"node {node} stopped its ranks, since it could not renew its lease in time",
        FaultKind.START_FAILED: f"node {node} could not start its ranks",
    }
    head = heads.get(kind, f"node {node} reported {kind.value.replace('_', ' ')}")
    return f"{head}: {detail}" if detail else head


def seat_lost(seat: Seat) -> str:
    """That a node of the world is gone."""
    return node_fault(FaultKind.NODE_LOST, where(seat.node_id, seat.host), "its lease ended")


def first_line(text: str) -> str:
    """What stands before the first line break."""
    return text.split("\n", 1)[0]


def _status(end: RankEnd) -> str:
    if end.error:
        return f"raised {_raised(end)}"
    if end.signal is not None:
        killer = " by someone else" if end.by is EndedBy.SOMEONE_ELSE else ""
        return f"was killed by {signal_name(end.signal)}{killer}"
    said = f": {end.last_lines[-1]}" if end.last_lines else ""
    return f"exited with code {end.exit_code}{said}"


def _raised(end: RankEnd) -> str:
    error = end.error
    if error is None:
        return ""
    place = f" ({error.file.rpartition('/')[2]}:{error.line})" if error.file else ""
    return f"{error.type}: {first_line(error.message)}".removesuffix(": ") + place
