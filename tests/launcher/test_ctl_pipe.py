"""A reader that has seen enough (`nvrx logs JOB -f | head`) is no failure, however deep it is noticed."""

from __future__ import annotations

import pytest

from nvrx_launcher.ctl.cli import run

GONE = BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("error", [GONE, ExceptionGroup("", [ExceptionGroup("", [GONE])])])
def test_who_has_seen_enough_is_no_failure(error: Exception) -> None:
    async def verb() -> int:
        raise error

    with pytest.raises(SystemExit) as ended:
        run(verb)
    assert ended.value.code == 0


def test_other_errors_pass_by() -> None:
    async def verb() -> int:
        raise ExceptionGroup("", [GONE, ValueError("bad")])

    with pytest.raises(ExceptionGroup) as caught:
        run(verb)
    assert caught.group_contains(ValueError, match="bad")
    assert not caught.group_contains(BrokenPipeError)


def test_one_error_stays_one() -> None:
    async def verb() -> int:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        run(verb)
