"""Learned limits: safety factor times maximum, merged half and half, the first occurrence apart."""

from __future__ import annotations

import pytest
from hang_kit import page, thread

from nvrx_async.hang.computed import learned, longest, merged
from nvrx_async.hang.errors import PolicyError
from nvrx_async.hang.policy import Action, hang_policy
from nvrx_async.ranklink.page import NameView


def test_the_longest_of_all_ranks_counts():
    pages = [page(1.0, thread(1.0, reports=50, gap_s=gap_s)) for gap_s in (2.0, 7.0, 3.0)]
    assert longest(pages) == {"reports": 7.0}


def test_too_few_occurrences_teach_nothing():
    names = (NameView("save", 2, 9.0, 8.0),)
    assert longest([page(1.0, thread(1.0, reports=3, gap_s=5.0), names=names)]) == {}


def test_what_is_longer_counts_at_once_and_what_is_known_is_not_forgotten():
    assert learned({"reports": 60.0}, {"reports": 20.0, "section:save": 2.0}) == {
        "reports": 100.0,
        "section:save": 10.0,
    }


def test_merging_is_half_and_half():
    assert merged({"a": 100.0, "b": 7.0}, {"a": 10.0, "c": 1.0}) == {"a": 75.0, "b": 7.0, "c": 5.0}


def test_everything_derives_from_one_knob():
    policy = hang_policy(600, None, Action.RESTART, startup_grace_s=30)
    assert (policy.startup_s, policy.floor_s, policy.startup_given) == (1200, 150, False)
    assert hang_policy(3, None, Action.RESTART, startup_grace_s=30).startup_s == 60
    assert hang_policy(3, None, Action.RESTART, startup_grace_s=30).floor_s == 3


def test_a_contradiction_is_refused_with_the_rule():
    with pytest.raises(PolicyError, match="hang-timeout <= hang-startup-timeout"):
        hang_policy(600, 60, Action.RESTART, startup_grace_s=30)
