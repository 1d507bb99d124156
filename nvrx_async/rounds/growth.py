"""When nodes that wait are taken in while a round runs on fewer than MAX. Pure.

A round is not changed but ended, at a step that all ranks agree on where they ask `should_stop`, and a larger one
follows. `now` does so for every arrival, though no round is ended for growth before it has run for a while: an agent
that comes and goes must not keep a training from getting on. `when-asked` waits for a person (`grow`) or for a rank
(`allow_grow`), `at-fault` for the next round that ends by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvrx_async.job.records import Exclusion, Grow, JobSpec, Join, Node, Purpose, Seat, Stop
from nvrx_async.rounds.exclusions import BY_POLICY


@dataclass(frozen=True, slots=True)
class GrowLater:
    """Nodes wait: what for, as a sentence, and from when on they are taken in (None: not by time)."""

    sentence: str
    at_s: float | None = None


def waiting(
    joins: Mapping[str, Join],
    nodes: Mapping[str, Node],
    seats: Sequence[Seat],
    excluded: Mapping[str, Exclusion],
) -> tuple[str, ...]:
    """Who has joined the next round, holds no seat in this one, and may take one; in the order of their names."""
    seated = {seat.node_id for seat in seats}
    return tuple(
        name
        for name, join in sorted(joins.items())
        if name not in seated
        and name not in excluded
        and name in nodes
        and nodes[name].incarnation == join.incarnation
    )


def growth(
    now_s: float, since_s: float, seats: Sequence[Seat], free: Sequence[str], spec: JobSpec, *, allowed: bool
) -> Stop | GrowLater | None:
    """Whether a round that has run since `since_s` is to end for the nodes that wait; `allowed`: a rank says so."""
    taken = free[: max(0, spec.max_nodes - len(seats))]
    if not taken:
        return None
    names = ", ".join(taken)
    match spec.policy.grow:
        case Grow.AT_FAULT:
            return GrowLater(f"{names}: taken in when this round ends (--grow at-fault)")
        case Grow.WHEN_ASKED if not allowed:
            return GrowLater(f"{names}: taken in when a person or a rank asks for it (--grow when-asked)")
        case _:
            due_s = since_s if allowed else since_s + spec.policy.grow_pause_s
            if now_s < due_s:
                return GrowLater(
                    f"{names}: taken in once this round has run for {spec.policy.grow_pause_s:g} s", due_s
                )
            return Stop(BY_POLICY, f"the job grows by {names}", purpose=Purpose.RENEW)
