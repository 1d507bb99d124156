"""When a job that the scheduler will end stops by itself, so that all its ranks save the same step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from signal import SIGTERM

from nvrx_async.job.records import Ending
from nvrx_async.rounds.events import StopWanted
from nvrx_launcher.exit_codes import ExitCode
from nvrx_launcher.grace import KILL_WAIT_S
from nvrx_launcher.wording import duration

_MOST_OF_WHAT_IS_LEFT = 0.5
"""A margin longer than the job is no reason to train nothing."""
_KILLING_S = 2.0


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """`after_s`: seconds from now until the stop is asked for; `wanted`: what is asked for then."""

    after_s: float
    wanted: StopWanted


def time_limit(
    end_unix_s: float | None, margin_s: float | None, stop_timeout_s: float, unix_s: float
) -> TimeLimit | None:
    """The stop before the end of the allocation; None where nobody tells the end, or that is past.

    Args:
        end_unix_s: when the scheduler ends the job, seconds since 1970.
        margin_s: how long before that the ranks are to stop; None for not at all.
        stop_timeout_s: between SIGTERM and SIGKILL, for ranks that did not stop in time.
        unix_s: now. Read once: a step of the wall clock moves nothing later on.
    """
    if end_unix_s is None or margin_s is None or (left_s := end_unix_s - unix_s) <= 0:
        return None
    before_s = min(margin_s, left_s * _MOST_OF_WHAT_IS_LEFT)
    within_s = max(before_s - stop_timeout_s - _KILLING_S, before_s / 2)
    reason = f"the scheduler's time limit is in {duration(before_s)}"
    return TimeLimit(left_s - before_s, StopWanted(reason, within_s, int(ExitCode.REQUEUE)))


def ending_by(number: int, end_unix_s: float | None, unix_s: float, *, limit_near: bool) -> Ending:
    """What it is called when this signal stops a job, at `unix_s` (seconds since 1970).

    SIGTERM is the scheduler's; others come from a person or a terminal. At the end of the allocation (`end_unix_s`), or
    after the job has begun to stop for that (`limit_near`), it is the time limit's.
    """
    if number != SIGTERM:
        return Ending.CANCELLED
    ends = end_unix_s is not None and unix_s >= end_unix_s - KILL_WAIT_S
    return Ending.TIME_LIMIT if limit_near or ends else Ending.PREEMPTED
