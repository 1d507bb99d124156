"""Agreed stops: what the coordinator makes of wish and votes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_async.job.codec import decode, encode
from nvrx_async.job.records import STOP, Phase, Round, Seat, Stop, StopPhase, StopVote
from nvrx_async.rounds.limits import limits_in, with_agreed_limits
from nvrx_async.rounds.stop_state import WITHIN, next_stop, stop_as_extra, stop_in, within_s

SEATS = tuple(Seat(f"n{i}", f"i{i}", f"h{i}", i, 2 * i, 2) for i in range(3))
WISH = Stop("n1", "n1 leaves")


def a_round(stop: Stop | None = None) -> Round:
    return Round(0, Phase.RUNNING, "", extra={STOP: stop_as_extra(stop)} if stop else {})


def votes(*steps: int | None) -> dict[str, StopVote]:
    return {f"n{i}": StopVote(f"n{i}", f"i{i}", step) for i, step in enumerate(steps)}


def test_a_wish_is_told_once():
    assert next_stop(a_round(), None, {}, SEATS, ()) is None
    assert next_stop(a_round(), WISH, {}, SEATS, ()) == WISH
    assert next_stop(a_round(WISH), WISH, {}, SEATS, ()) is None


def test_all_must_have_voted_and_the_highest_and_one_more_is_the_step():
    assert next_stop(a_round(WISH), WISH, votes(5, 7), SEATS, ()) is None
    answer = next_stop(a_round(WISH), WISH, votes(5, 7, 6), SEATS, ())
    assert (answer.phase, answer.step) == (StopPhase.AGREED, 8)
    assert next_stop(a_round(answer), WISH, votes(5, 7, 6), SEATS, ()) is None


def test_the_time_that_is_told_replaces_the_usual_one():
    told = Stop("n1", "limit", extra={WITHIN: 40})
    assert within_s(stop_in({STOP: stop_as_extra(told)}), 15.0) == 40.0
    assert within_s(WISH, 15.0) == 15.0
    assert within_s(Stop("n1", "limit", extra={WITHIN: "long"}), 15.0) == 15.0


def test_a_vote_of_an_earlier_life_is_none():
    held = votes(5, 7, 6) | {"n2": StopVote("n2", "of another life", 6)}
    assert next_stop(a_round(WISH), WISH, held, SEATS, ()) is None


def test_members_that_are_done_are_not_asked():
    answer = next_stop(a_round(WISH), WISH, votes(5, 7), SEATS, {"n2"})
    assert answer.step == 8


@pytest.mark.parametrize("steps", [(5, None, 6), (None, None, None)])
def test_ranks_that_do_not_ask_refuse_for_all(steps):
    assert next_stop(a_round(WISH), WISH, votes(*steps), SEATS, ()).phase is StopPhase.REFUSED


def test_it_survives_the_codec_and_garbage_is_nothing():
    told = Stop("n1", "why", StopPhase.AGREED, 8)
    assert stop_in(decode(Round, "round", encode(a_round(told))).extra) == told
    assert stop_in({STOP: 3}) is None
    assert stop_in({STOP: {"phase": "later"}}) is None


def test_the_next_round_knows_limits_but_no_stop():
    extra = with_agreed_limits(a_round(WISH).extra | {"limits": {"reports": 5}, "later": 1}, ())
    assert stop_in(extra) is None
    assert limits_in(extra) == {"reports": 5.0}
    assert extra["later"] == 1


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3), st.data())
def test_no_rank_has_passed_the_step_and_all_stop_at_it(asked, data):
    """Ranks that go on from where they were held, in any order, all stop at the agreed step."""
    answer = next_stop(a_round(WISH), WISH, votes(*asked), SEATS, ())
    for step in asked:
        assert step < answer.step
        at = step
        while at < answer.step:  # what `should_stop` answers
            at += 1
        assert at == answer.step
