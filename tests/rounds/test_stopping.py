"""Agreed stops: an agent's part, driven as a member of a running round."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from member_kit import running
from rounds_kit import KEYS, all_of, only

from nvrx_async.job.codec import decode
from nvrx_async.job.records import STOP, Purpose, Round, Stop, StopPhase, StopVote
from nvrx_async.rounds.effects import Commit, HoldRanks, StopAtStep, StopRanks
from nvrx_async.rounds.events import LeaveRequested, RanksHeld, StopWanted
from nvrx_async.rounds.stop_state import WITHIN, stop_as_extra

LIMIT = StopWanted("the time limit is near", 40.0, 75)


def record(bench, kind, key):
    return decode(kind, key, bench.etcd.held[key].value)


def tell_stop(bench, stop: Stop) -> None:
    """What the coordinator tells all."""
    now_round = record(bench, Round, KEYS.round)
    bench.etcd.put(KEYS.round, replace(now_round, extra={STOP: stop_as_extra(stop)}))


def held(bench, step: int | None):
    assert only(bench.tell(LIMIT), HoldRanks).round == 0
    return bench.tell(RanksHeld(0, step))


def test_a_time_limit_becomes_a_wish_that_ends_the_job():
    bench = running()
    wish = only(held(bench, 7), Commit)
    assert wish.tag == "stop"
    bench.settle(bench.outcome(wish))
    written = record(bench, Stop, KEYS.stop(0))
    assert (written.by, written.reason, written.purpose) == ("a", LIMIT.reason, Purpose.FINISH)
    assert written.extra == {"exit_code": 75, WITHIN: 40.0, "ending": "time_limit"}


def test_the_wish_is_followed_by_a_vote_and_the_answer():
    bench = running()
    wish = only(held(bench, 7), Commit)
    bench.settle(bench.outcome(wish))
    tell_stop(bench, Stop("a", "", purpose=Purpose.FINISH))
    bench.settle()
    assert record(bench, StopVote, KEYS.stop_vote(0, "a")).step == 7
    tell_stop(bench, Stop("a", "", StopPhase.AGREED, 9, Purpose.FINISH))
    decision = bench.tell()
    assert only(decision, StopAtStep) == StopAtStep(0, 9)
    assert not all_of(decision, StopRanks), "they end by themselves"


def test_ranks_that_do_not_ask_train_on():
    bench = running()
    decision = held(bench, None)
    assert only(decision, StopAtStep) == StopAtStep(0, None)
    assert not all_of(decision, Commit)
    assert not all_of(decision, StopRanks)
    assert not bench.tell(LIMIT).effects, "once in a round"


def test_the_next_round_is_asked_again():
    bench = running()
    held(bench, None)
    again = running(number=1)
    assert only(again.tell(LIMIT), HoldRanks).round == 1


@pytest.mark.parametrize("phase", [StopPhase.ASKED, StopPhase.AGREED])
def test_a_stop_that_others_want_needs_no_wish(phase):
    bench = running()
    tell_stop(bench, Stop("b", "n1 is drained", phase, 5, Purpose.RENEW))
    decision = bench.tell()
    expected = HoldRanks(0) if phase is StopPhase.ASKED else StopAtStep(0, 5)
    assert only(decision, type(expected)) == expected


def test_an_agent_that_leaves_wishes_a_stop_that_the_others_outlive():
    bench = running()
    assert only(bench.tell(LeaveRequested(signal.SIGTERM, bench.now_s + 15.0)), HoldRanks)
    wish = only(bench.tell(RanksHeld(0, 3)), Commit)
    bench.settle(bench.outcome(wish))
    assert record(bench, Stop, KEYS.stop(0)).purpose is Purpose.LEAVE
