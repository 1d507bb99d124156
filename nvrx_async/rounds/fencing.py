"""When ranks may run, and when a silent agent's ranks are certainly dead (`docs/design.md`, Fencing)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nvrx_async.job.records import JobSpec, Node, Seat, Spare

MARGIN_S = 0.3
"""Between the keeper's deadline and the lease's end, beside the kill time."""

SETTLE_S = 3.0
"""How long after a lease's end the store may still hold it (expiry is looked for each 0.5 s, revokes queue)."""


def good_until(sent_at_s: float, ttl_s: float, kill_time_s: float) -> float:
    """Deadline T by which the keeper has killed all ranks if no later renewal is acknowledged."""
    return sent_at_s + ttl_s - (kill_time_s + MARGIN_S)


def missing_wait_s(spec: JobSpec, *, recorded: bool) -> float:
    """How long a member must have been seen missing before time alone proves its ranks dead."""
    wait_s = spec.lease_ttl_s + SETTLE_S + spec.kill_time_s
    return wait_s if recorded else wait_s + spec.outage_limit_s


def takeover_wait_s(spec: JobSpec) -> float:
    """How long an attempt must have had no registered node before another one may begin."""
    return missing_wait_s(spec, recorded=False)


@dataclass(frozen=True, slots=True)
class Judge:
    """Who asks. `recorded`: named in the last sealed world; `older_than_seal`: its session began before that.

    `promised_until_s`: until when it promised each incarnation not to call it fenced.
    """

    recorded: bool
    older_than_seal: bool
    promised_until_s: Mapping[str, float] = field(default_factory=dict)


def is_present(seat: Seat | Spare, nodes: dict[str, Node]) -> bool:
    """Whether the incarnation that was seated still holds its registration."""
    node = nodes.get(seat.node_id)
    return node is not None and node.incarnation == seat.incarnation


def given_up_at(
    seat: Seat, nodes: dict[str, Node], missing_since_s: float, judge: Judge, spec: JobSpec
) -> float:
    """From when on a round is not worth to be kept for a missing member: it would have come back by then.

    After an outage in which leases ended, all register again within moments, their ranks alive.
    """
    successor = nodes.get(seat.node_id)
    if successor is not None and successor.succeeds == seat.incarnation:
        return missing_since_s
    promised_s = judge.promised_until_s.get(seat.incarnation, 0.0)
    patience_s = 0.0 if judge.older_than_seal or spec.outage_limit_s <= 0 else spec.lease_ttl_s
    return max(missing_since_s + patience_s, promised_s)


def fenced_at(
    seat: Seat | Spare, nodes: dict[str, Node], missing_since_s: float, judge: Judge, spec: JobSpec
) -> tuple[float, str]:
    """From when on a missing member's ranks are certainly dead, and why.

    The member must be missing (`is_present` is false), since `missing_since_s` as the asker saw it.
    """
    successor = nodes.get(seat.node_id)
    if successor is not None and successor.succeeds == seat.incarnation:
        return missing_since_s, f"{seat.node_id} was proven dead by its successor"
    promised_s = judge.promised_until_s.get(seat.incarnation, 0.0)
    if judge.recorded and judge.older_than_seal:
        return (
            max(missing_since_s, promised_s),
            f"the lease of {seat.node_id} ended, and its keeper's deadline lies before that",
        )
    wait_s = missing_wait_s(spec, recorded=judge.recorded)
    return max(missing_since_s + wait_s, promised_s), f"{seat.node_id} has been missing for {wait_s:g} s"
