"""Threads hand the interpreter over soon while they work beside a loop, and only then."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from nvrx_telemetry.turns import SWITCH_S, Turns


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield 0.004
    sys.setswitchinterval(before_s)


def test_turns_are_short_while_somebody_works(usual: float) -> None:
    turns = Turns()
    assert sys.getswitchinterval() == pytest.approx(usual)
    with turns:
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        with turns:  # another thread's
            pass
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S), "one still works"
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_they_are_as_before_when_work_fails(usual: float) -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns:
        raise ZeroDivisionError
    assert sys.getswitchinterval() == pytest.approx(usual)
