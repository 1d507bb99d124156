"""How far an agreed stop has come: as the round carries it, and what the coordinator makes of the votes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nvrx_async.job.records import STOP, Ending, Purpose, Round, Seat, Stop, StopPhase, StopVote

WITHIN = "within_s"
"""Key of `Stop.extra`: seconds that the ranks may take to reach the step and to save, where it is not the usual."""

ENDING = "ending"
"""Key of `Stop.extra`: in which way the job ends by it, a value of `Ending`."""

_FIELDS = frozenset({"by", "reason", "phase", "step", "purpose"})
_STRENGTH = {purpose: place for place, purpose in enumerate(Purpose)}


def stop_as_extra(stop: Stop) -> dict[str, Any]:
    """The stop as a round carries it."""
    return {
        "by": stop.by,
        "reason": stop.reason,
        "phase": stop.phase.value,
        "step": stop.step,
        "purpose": stop.purpose.value,
        **stop.extra,
    }


def stop_in(extra: Mapping[str, Any]) -> Stop | None:
    """The stop that a round carries, None if there is none that can be read."""
    raw = extra.get(STOP)
    if not isinstance(raw, Mapping) or raw.get("phase") not in {phase.value for phase in StopPhase}:
        return None
    step, purpose = raw.get("step", -1), raw.get("purpose")
    return Stop(
        str(raw.get("by", "")),
        str(raw.get("reason", "")),
        StopPhase(raw["phase"]),
        step if isinstance(step, int) else -1,
        Purpose(purpose) if purpose in {one.value for one in Purpose} else Purpose.LEAVE,
        {key: value for key, value in raw.items() if key not in _FIELDS},
    )


def within_s(stop: Stop, usual_s: float) -> float:
    """How long the ranks may take to end by themselves."""
    told = stop.extra.get(WITHIN)
    return float(told) if isinstance(told, int | float) and told >= 0 else usual_s


def ending_in(stop: Stop) -> Ending | None:
    """In which way a job ends by this stop, None if it does not say."""
    told = stop.extra.get(ENDING)
    return next((one for one in Ending if one.value == told), None)


def put_to_use(old: Stop | None, new: Stop) -> Stop:
    """The stop that serves both: one under way is not begun anew, and the stronger purpose is followed."""
    if old is None:
        return new
    if _STRENGTH[new.purpose] <= _STRENGTH[old.purpose]:
        return old
    return replace(new, phase=old.phase, step=old.step)


def next_stop(
    now_round: Round,
    wish: Stop | None,
    votes: Mapping[str, StopVote],
    seats: Sequence[Seat],
    done: Collection[str],
) -> Stop | None:
    """What the coordinator tells next of a stop: that it is wished, then the answer; None if there is nothing new."""
    stop = stop_in(now_round.extra)
    if stop is None:
        return wish
    if stop.phase is not StopPhase.ASKED:
        return None
    steps: list[int | None] = []
    for seat in seats:
        if seat.node_id in done:
            continue
        vote = votes.get(seat.node_id)
        if vote is None or vote.incarnation != seat.incarnation:
            return None
        steps.append(vote.step)
    known = [step for step in steps if step is not None]
    if not known or len(known) < len(steps):
        return replace(stop, phase=StopPhase.REFUSED)
    return replace(stop, phase=StopPhase.AGREED, step=max(known) + 1)
