"""When a job stops by itself before the scheduler ends it."""

from __future__ import annotations

import pytest

from nvrx_launcher.time_limit import time_limit


def test_the_stop_is_asked_for_the_margin_before_the_end():
    found = time_limit(10_000.0, 60.0, 15.0, 1_000.0)
    assert found is not None
    assert found.after_s == 9_000.0 - 60.0
    assert "1 min" in found.wanted.reason
    assert found.wanted.exit_code == 75
    assert found.wanted.within_s + 15.0 < 60.0, "those that did not stop are killed before the end"


def test_a_short_job_trains_for_half_of_its_time_at_least():
    found = time_limit(1_040.0, 60.0, 15.0, 1_000.0)
    assert found is not None
    assert found.after_s == 20.0
    assert 0 < found.wanted.within_s <= 20.0


@pytest.mark.parametrize(
    ("end_unix_s", "margin_s"), [(None, 60.0), (2_000.0, None), (999.0, 60.0), (1_000.0, 60.0)]
)
def test_without_a_limit_or_a_wish_or_time_nothing_is_asked_for(end_unix_s, margin_s):
    assert time_limit(end_unix_s, margin_s, 15.0, 1_000.0) is None
