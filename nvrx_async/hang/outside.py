"""Whether a rank stands still, judged from outside: CPU time, output and thread states."""

from __future__ import annotations

from dataclasses import dataclass, replace

STILL_SHARE = 0.02
"""Part of one core that threads which only wake to look around may use."""

STOPPED = "T"
"""State of a thread that a signal stopped (proc_pid_stat(5))."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A rank at a moment.

    `cpu_s`: CPU time of it and its children; `states`: one letter a thread, sorted; `output_s`: when it last
    wrote (same clock as `at_s`).
    """

    at_s: float
    cpu_s: float
    states: str
    output_s: float = 0.0

    @property
    def stopped(self) -> bool:
        """Every thread was stopped by a signal."""
        return bool(self.states) and set(self.states) == {STOPPED}


@dataclass(frozen=True, slots=True)
class Standing:
    """Since when nothing has moved, as far as samples tell; `stopped_since_s`: stopped at every look since.

    The last movement lies between the samples at `moved_after_s` and `still_since_s`.
    """

    last: Sample
    still_since_s: float
    stopped_since_s: float | None = None
    moved_after_s: float = 0.0

    def still_for_s(self) -> float:
        """How long nothing has moved, at the last sample."""
        return self.last.at_s - self.still_since_s

    def still_from_s(self, began_s: float) -> float:
        """The same, where what moved at the first sample after `began_s` is known to have moved before that."""
        return began_s if self.moved_after_s <= began_s <= self.still_since_s else self.still_since_s


def first(sample: Sample) -> Standing:
    """What one sample tells."""
    return Standing(sample, sample.at_s, sample.at_s if sample.stopped else None)


def following(known: Standing, sample: Sample) -> Standing:
    """What one sample more tells. What moved between two looks may have moved at the later one."""
    before = known.last
    span_s = sample.at_s - before.at_s
    moved = (
        sample.cpu_s - before.cpu_s > max(STILL_SHARE * span_s, 0.015)
        or sample.states != before.states
        or sample.output_s > before.at_s
    )
    since = known.stopped_since_s if sample.stopped and known.stopped_since_s is not None else sample.at_s
    return replace(
        known,
        last=sample,
        still_since_s=sample.at_s if moved else known.still_since_s,
        moved_after_s=before.at_s if moved else known.moved_after_s,
        stopped_since_s=since if sample.stopped else None,
    )


def restarted_at(known: Standing, now_s: float) -> Standing:
    """The same after a time in which nobody could move, the agent neither: it counts from now."""
    return replace(
        known,
        still_since_s=max(known.still_since_s, now_s),
        moved_after_s=max(known.moved_after_s, now_s),
        stopped_since_s=None if known.stopped_since_s is None else now_s,
    )
