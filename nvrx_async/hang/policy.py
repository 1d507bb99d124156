"""How patient the monitor is: one knob, and what derives from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from nvrx_async.hang.errors import PolicyError

SAFETY_FACTOR = 5.0
"""A learned limit is this many times the longest time seen, as in NVIDIA's `TimeoutsCalc`."""

_FLOOR_PART = 0.25
_STARTUP_PART = 2.0
_PROBE_S = 2.0
_LEAST_LEARNED_S = 30.0


class Action(Enum):
    """What a finding leads to."""

    REPORT = "report"
    """Nothing is killed, everything is told."""
    RESTART = "restart"
    """A hung rank ends the round; a suspect is told."""
    KILL_SUSPECTS = "kill-suspects"
    """Suspects are treated as hung."""


@dataclass(frozen=True, slots=True)
class HangPolicy:
    """Limits in seconds.

    `timeout_s`: a rank without progress for this long is hung, whatever was learned. `startup_s`: time from the
    start of the process to its first report, and from its last one to its end. `startup_given`: a person
    set it, so every rank is expected to report, unless `first_report_s` is set: then nobody need report, who has
    connected has so long for its first report, and `startup_s` is for what comes before, and for the end.
    `section_limits_s`: by name of a section, where the script brings no limit; None for no limit at all. `floor_s`: no
    learned limit is shorter.
    """

    timeout_s: float
    startup_s: float
    action: Action = Action.RESTART
    startup_given: bool = False
    first_report_s: float | None = None
    section_limits_s: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def floor_s(self) -> float:
        """A quarter of the time-out, and 30 s where that is longer."""
        return max(self.timeout_s * _FLOOR_PART, min(self.timeout_s, _LEAST_LEARNED_S))

    def limit_of_section_s(self, name: str, own_s: float | None) -> float:
        """How long a section may take: by the script (`own_s`), else by its name, else the time-out. Can be inf."""
        if own_s is not None:
            return own_s
        limit_s = self.section_limits_s.get(name, self.timeout_s)
        return math.inf if limit_s is None else limit_s

    @property
    def first_step_s(self) -> float:
        """What a person said of the start is for the first step, too."""
        return self.startup_s if self.first_report_s is None else self.first_report_s

    @property
    def probe_s(self) -> float:
        """How long a rank must stand still before its learned deadline for that to count as hung."""
        return min(_PROBE_S, self.floor_s / 2)


def hang_policy(
    timeout_s: float,
    startup_s: float | None,
    action: Action,
    *,
    startup_grace_s: float,
    section_limits_s: Mapping[str, float | None] | None = None,
    first_report_s: float | None = None,
) -> HangPolicy:
    """Derive what was not given and refuse what cannot be meant.

    Args:
        timeout_s: see `HangPolicy`.
        startup_s: the same; None to derive it.
        action: what a finding leads to.
        startup_grace_s: how long a rank has to live to count as ready.
        section_limits_s: see `HangPolicy`.
        first_report_s: the same.

    Raises:
        PolicyError: a start has less time than a step, or less than it takes to count as ready.
    """
    derived_s = max(timeout_s * _STARTUP_PART, startup_grace_s * _STARTUP_PART)
    chosen_s = derived_s if startup_s is None else startup_s
    if chosen_s < timeout_s:
        raise PolicyError(
            f"--hang-startup-timeout {chosen_s:g} is shorter than --hang-timeout {timeout_s:g}; the rule: "
            "hang-timeout <= hang-startup-timeout, since a start holds the first step and all before it",
            f"leave --hang-startup-timeout out (it would be {derived_s:g})",
        )
    return HangPolicy(
        timeout_s,
        chosen_s,
        action,
        startup_given=startup_s is not None,
        first_report_s=first_report_s,
        section_limits_s=section_limits_s or {},
    )
