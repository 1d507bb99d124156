"""An etcd that is away for a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvrx_async.etcd.errors import UnavailableError
from nvrx_async.job import patience
from nvrx_async.job.history import past
from nvrx_async.job.patience import Absence, Patience
from nvrx_async.job.status import JobState


def answers(*told):
    left = list(told)

    async def call():
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return call


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(patience, "AGAIN_S", 0.0)


def away() -> UnavailableError:
    return UnavailableError("no etcd endpoint answered", evidence=("x",))


async def test_an_etcd_that_never_answered_is_told_at_once():
    with pytest.raises(UnavailableError):
        await Patience().of(answers(away(), 1))


async def test_one_that_goes_is_asked_again_and_said_once_each_time():
    said: list[UnavailableError] = []
    asked = Patience(said.append)
    assert await asked.of(answers(1)) == 1
    assert await asked.of(answers(away(), away(), 2)) == 2
    assert len(said) == 1
    assert await asked.of(answers(away(), 3)) == 3
    assert len(said) == 2


async def test_not_for_ever():
    asked = Patience(limit_s=0.0)
    await asked.of(answers(1))
    with pytest.raises(UnavailableError):
        await asked.of(answers(away(), away(), 2))


def stands(state: JobState):
    return replace(past("llama", []).status, state=state)


async def test_agents_that_register_anew_after_an_outage_have_not_abandoned_their_job():
    absence = Absence()
    assert not absence.passes(stands(JobState.RUNNING))
    assert absence.looks_again_s is None
    assert absence.passes(stands(JobState.ABANDONED))
    assert absence.looks_again_s is not None, "no event tells that nobody comes"
    assert not absence.passes(stands(JobState.RUNNING))
    assert absence.looks_again_s is None
    assert not absence.passes(stands(JobState.STOPPED))


async def test_a_job_that_everybody_left_is_told_at_once_to_who_comes_later_and_in_the_end_to_all():
    assert not Absence().passes(stands(JobState.ABANDONED))
    late = Absence(limit_s=0.0)
    late.passes(stands(JobState.RUNNING))
    assert not late.passes(stands(JobState.ABANDONED))
