"""The time between SIGTERM and SIGKILL: the person's word, else what the scheduler is known to leave."""

from __future__ import annotations

import pytest

from nvrx_launcher.command_line import parse
from nvrx_launcher.config import LaunchConfig
from nvrx_launcher.configure import configure
from nvrx_launcher.errors import UsageError
from nvrx_launcher.grace import within


def launched(*options: str, **environment: str) -> LaunchConfig:
    line = parse([*options, "train.py"], environment)
    return configure(line, environment, lambda word: 1, lambda path: "")


@pytest.mark.parametrize(("wait", "grace_s"), [("300", 295.0), ("30", 25.0), ("4", 2.0), ("", 15.0)])
def test_the_schedulers_wait_less_what_the_end_needs(wait: str, grace_s: float) -> None:
    assert launched(NVRX_TERMINATION_GRACE_S=wait).workers.stop_timeout_s == grace_s


def test_the_persons_word_stands_and_is_warned_of_where_it_is_too_long() -> None:
    short = launched("--workers-stop-timeout", "20", NVRX_TERMINATION_GRACE_S="30")
    assert (short.workers.stop_timeout_s, short.notices) == (20.0, ())
    long = launched("--workers-stop-timeout", "60", NVRX_TERMINATION_GRACE_S="30")
    assert long.workers.stop_timeout_s == 60.0
    (notice,) = long.notices
    assert notice.startswith("--workers-stop-timeout 60 is too long for NVRX_TERMINATION_GRACE_S=30")


@pytest.mark.parametrize("wait", ["5m", "-1", "0", "nan", "inf"])
def test_a_wait_that_is_no_number(wait: str) -> None:
    with pytest.raises(UsageError, match=f"NVRX_TERMINATION_GRACE_S={wait} is no number of seconds"):
        launched(NVRX_TERMINATION_GRACE_S=wait)


@pytest.mark.parametrize(
    ("left_s", "grace_s"),
    [(3600.0, 600.0), (300.0, 300.0), (31.0, 31.0), (30.0, 600.0), (-5.0, 600.0)],
    ids=["far", "in sight", "close", "the time limit's own", "after it"],
)
def test_no_longer_than_the_allocation(left_s: float, grace_s: float) -> None:
    assert within(600.0, 1_000_000.0, 1_000_000.0 - left_s) == grace_s
    assert within(600.0, None, 1_000_000.0) == 600.0


@pytest.mark.parametrize(("end", "known"), [("1700000000", 1.7e9), ("", None), ("UNLIMITED", None)])
def test_slurm_tells_when_the_allocation_ends(end: str, known: float | None) -> None:
    workers = launched(SLURM_JOB_END_TIME=end).workers
    assert workers.end_unix_s == known
    assert workers.grace_s(1.7e9 - 10_000) == 15.0
