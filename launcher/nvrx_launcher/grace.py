"""How long ranks may take to stop: what the person says, else what the scheduler leaves. Pure.

A scheduler sends SIGTERM, waits, and kills everything. What it tells a process of that wait is little: Kubernetes has
no downward API for `terminationGracePeriodSeconds`, so the pod's template repeats the number in a variable; Slurm
tells when the allocation ends, and keeps KillWait (30 s unless an administrator changed it) to itself. Asking its
controller (`scontrol`) from every node of a large job, at the moment all of them stop, is no option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nvrx_launcher.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

TERMINATION_GRACE: Final = "NVRX_TERMINATION_GRACE_S"
"""Seconds between the scheduler's SIGTERM and its SIGKILL, as the person who wrote the pod's template knows them."""
ALLOCATION_END: Final = "SLURM_JOB_END_TIME"
"""When Slurm's time limit ends the job, in seconds since 1970."""
RESERVE_S: Final = 5.0
"""Kept of the scheduler's wait for killing what did not stop, the last records and the summary."""
KILL_WAIT_S: Final = 30.0
"""Slurm's KillWait by default: a SIGTERM this close to the end may be the one of the time limit itself."""


def granted_s(wished_s: float, environment: Mapping[str, str], notices: list[str], *, by_user: bool) -> float:
    """Seconds between SIGTERM and SIGKILL. `wished_s` is the option's value, the person's own if `by_user`.

    Raises:
        UsageError: the variable with the scheduler's wait is no number.
    """
    text = environment.get(TERMINATION_GRACE, "").strip()
    if not text:
        return wished_s
    wait_s = _positive(text)
    if wait_s is None:
        raise UsageError(
            f"{TERMINATION_GRACE}={text} is no number of seconds",
            "write the number that stands at terminationGracePeriodSeconds",
        )
    within_s = max(wait_s - RESERVE_S, wait_s / 2)
    if not by_user:
        return within_s
    if wished_s > within_s:
        notices.append(
            f"--workers-stop-timeout {wished_s:g} is too long for {TERMINATION_GRACE}={text}: "
            "the scheduler may kill ranks that are still saving"
        )
    return wished_s


def allocation_end(environment: Mapping[str, str]) -> float | None:
    """When Slurm ends everything, in seconds since 1970; None if nothing tells, as without a time limit."""
    return _positive(environment.get(ALLOCATION_END, "").strip())


def within(grace_s: float, end_unix_s: float | None, unix_s: float) -> float:
    """The grace of a stop that begins at `unix_s` (seconds since 1970): no longer than the allocation lasts.

    At its end Slurm sends SIGTERM again, which kills the ranks. Shortly before and after it nothing is taken away:
    what stops the ranks may be that very SIGTERM, and Slurm's own wait begins.
    """
    if end_unix_s is None:
        return grace_s
    left_s = end_unix_s - unix_s
    return min(grace_s, left_s) if left_s > KILL_WAIT_S else grace_s


def _positive(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None
