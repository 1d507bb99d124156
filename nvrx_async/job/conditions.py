"""What a person can wait for. Pure: a condition is looked up in a status."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from nvrx_async.job.errors import NoSuchError
from nvrx_async.job.status import JobState, JobStatus

FORMS = "running, ended, round=N or step=N"
_NUMBERED = re.compile(r"(round|step)=(\d{1,19})")
MOST_STEP = 2**63 - 2
"""What stands on a rank's page is a step plus 1, in 64 bits with a sign."""


class Answer(Enum):
    """Whether a condition holds."""

    YES = "yes"
    NOT_YET = "not yet"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Condition:
    """`text` as it was written. `step`: what all ranks have to come to, which only their agents know."""

    text: str
    holds: Callable[[JobStatus], Answer]
    step: int | None = None


def condition(text: str) -> Condition:
    """Read a condition: `running`, `ended`, `round=2` (that round runs, or is over), `step=100` (of all ranks).

    Raises:
        NoSuchError: it is none of these.
    """
    if text == "running":
        return Condition(text, _running)
    if text == "ended":
        return Condition(text, lambda status: Answer.YES if status.state.is_over else Answer.NOT_YET)
    numbered = _NUMBERED.fullmatch(text)
    if numbered is None:
        raise NoSuchError(f"nobody can wait for {text!r}", f"it is one of: {FORMS}")
    number = int(numbered[2])
    if number > MOST_STEP:
        raise NoSuchError(f"nobody can wait for {text!r}", f"a number is {MOST_STEP} at most")
    if numbered[1] == "round":
        return Condition(text, lambda status: _round(status, number))
    return Condition(text, lambda status: _step(status, number), step=number)


def _running(status: JobStatus) -> Answer:
    if status.state is JobState.RUNNING:
        return Answer.YES
    return Answer.NEVER if status.state.is_over else Answer.NOT_YET


def _round(status: JobStatus, number: int) -> Answer:
    begun = status.state in (JobState.RUNNING, JobState.ENDING) or status.state.is_over
    if status.round > number or (status.round == number and begun):
        return Answer.YES
    return Answer.NEVER if status.state.is_over else Answer.NOT_YET


def _step(status: JobStatus, number: int) -> Answer:
    if status.state.is_over:
        return Answer.NEVER
    steps = [rank.step for rank in status.ranks]
    come = bool(steps) and all(step is not None and step >= number for step in steps)
    return Answer.YES if come else Answer.NOT_YET
