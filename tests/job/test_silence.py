"""Who is spoken of before anybody is hung."""

from __future__ import annotations

import pytest

from nvrx_async.job.live import LiveNode, LiveRank
from nvrx_async.job.silence import silent_ranks


def rank(number: int, since_s: float | None, in_s: float | None, **more) -> LiveRank:
    return LiveRank(
        number,
        number % 2,
        100 + number,
        more.pop("state", "running"),
        step=30,
        late_by="is still in section save",
        late_since_s=since_s,
        late_in_s=in_s,
        **more,
    )


def silent(*ranks: LiveRank, number: int = 4) -> list[tuple]:
    found = silent_ranks({"n0": LiveNode("n0", number, ranks)}, {}, 4)
    return [(one.rank, one.since_s, one.due_in_s) for one in found]


@pytest.mark.parametrize(
    ("since_s", "in_s", "told"),
    [(0.1, 99.9, False), (9.9, 590.0, False), (10.0, 590.0, True), (5.0, 15.0, True)],
)
def test_a_rank_is_silent_from_ten_seconds_or_a_quarter_of_its_limit_on(since_s, in_s, told):
    assert bool(silent(rank(0, since_s, in_s))) is told


def test_who_is_in_a_section_comes_first_then_the_longest_silent():
    found = silent(rank(0, 20.0, 10.0), rank(1, 25.0, 5.0), rank(2, 15.0, 15.0, section="save"))
    assert [one[0] for one in found] == [2, 1, 0]


def test_a_deadline_that_has_passed_is_no_negative_time():
    assert silent(rank(0, 40.0, -10.0)) == [(0, 40.0, 0.0)]


def test_without_deadlines_the_last_beat_counts():
    assert silent(rank(0, None, None, beat_age_s=9.0)) == []
    assert silent(rank(0, None, None, beat_age_s=11.0)) == [(0, 11.0, None)]
    assert silent(rank(0, None, None)) == []


def test_ranks_of_other_rounds_and_ended_ones_are_not_spoken_of():
    assert silent(rank(0, 99.0, 1.0), number=3) == []
    assert silent(rank(0, 99.0, 1.0, state="ended"), rank(1, 99.0, 1.0, state="done")) == []
