"""When ranks may run, and when a silent agent's ranks are certainly dead."""

from __future__ import annotations

import pytest
from rounds_kit import SPEC, node, seat, spec

from nvrx_async.job.records import Spare
from nvrx_async.rounds.fencing import (
    MARGIN_S,
    SETTLE_S,
    Judge,
    fenced_at,
    good_until,
    is_present,
    missing_wait_s,
    takeover_wait_s,
)

SEAT = seat("b", 1)
RECORDED_WAIT_S = 6 + SETTLE_S + 2.0


def test_the_keepers_deadline_lies_a_kill_and_a_margin_before_the_leases_end():
    assert good_until(100.0, 6, 2.0) == pytest.approx(100 + 6 - 2.0 - MARGIN_S)


def test_what_is_seen_missing_has_outlived_its_deadline_before_time_alone_fences_it():
    """From the last acknowledged send, T comes first, then the lease's end, which can be seen SETTLE_S later."""
    sent_s = 100.0
    first_seen_missing_s = sent_s  # the earliest that is thinkable: the key never came into sight
    assert good_until(sent_s, SPEC.lease_ttl_s, SPEC.kill_time_s) < first_seen_missing_s + missing_wait_s(
        SPEC, recorded=True
    )


@pytest.mark.parametrize(("recorded", "expected"), [(True, 11.0), (False, 131.0)])
def test_the_wait_for_a_missing_member(recorded, expected):
    assert missing_wait_s(SPEC, recorded=recorded) == expected


def test_a_takeover_assumes_the_worst():
    assert takeover_wait_s(SPEC) == missing_wait_s(SPEC, recorded=False)
    assert takeover_wait_s(spec(outage_limit_s=0.0)) == 11.0


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({}, False),
        ({"a": node("a")}, False),
        ({"b": node("b", "b-2")}, False),
        ({"b": node("b", "b-1")}, True),
        ({"a": node("a", "b-1")}, False),
    ],
)
def test_only_the_incarnation_that_was_seated_is_present(nodes, expected):
    assert is_present(SEAT, nodes) is expected
    assert is_present(Spare("b", "b-1"), nodes) is expected


@pytest.mark.parametrize(
    ("successor", "recorded", "older", "wait_s", "words"),
    [
        # (a) its successor on the host proved it dead: whoever asks
        (node("b", "b-2", succeeds="b-1"), False, False, 0.0, "proven dead by its successor"),
        (node("b", "b-2", succeeds="b-1"), True, True, 0.0, "proven dead by its successor"),
        # a successor that proved somebody else dead, or nobody
        (node("b", "b-3", succeeds="b-2"), True, False, RECORDED_WAIT_S, "missing for 11 s"),
        (node("b", "b-2"), False, False, RECORDED_WAIT_S + 120, "missing for 131 s"),
        # (b) a recorded coordinator whose session is older than the seal
        (None, True, True, 0.0, "keeper's deadline lies before"),
        # (c) time
        (None, True, False, RECORDED_WAIT_S, "missing for 11 s"),
        (None, False, True, RECORDED_WAIT_S + 120, "missing for 131 s"),
        (None, False, False, RECORDED_WAIT_S + 120, "missing for 131 s"),
    ],
)
def test_fenced(successor, recorded, older, wait_s, words):
    nodes = {"b": successor} if successor else {}
    at_s, why = fenced_at(SEAT, nodes, 50.0, Judge(recorded, older), SPEC)
    assert at_s == 50.0 + wait_s
    assert words in why
    assert "b" in why
