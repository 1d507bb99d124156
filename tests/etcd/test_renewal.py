from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvrx_async.etcd.renewal import RETRY_S, Lapsed, Renew, Renewals, Wait, next_step

GRANTED = Renewals(ttl_s=6.0, acknowledged_sent_at_s=100.0)


def step(renewals, now_s, jitter=0.0):
    return next_step(renewals, now_s, jitter=jitter, longest_s=2.0)


def test_renewed_at_a_third_of_the_ttl_after_the_send_time():
    assert step(GRANTED, 100.1) == Wait(102.0)
    assert step(GRANTED, 102.0) == Renew(1.5)


def test_jitter_only_ever_renews_earlier():
    assert step(GRANTED, 100.1, jitter=1.0) == Wait(101.8)


def test_a_failure_is_tried_again_within_a_fifth_of_a_second():
    assert RETRY_S <= 0.2
    for at_s in (100.5, 103.0):  # asked for early, or due
        failed = GRANTED.failed(at_s)
        assert step(failed, at_s) == Wait(at_s + RETRY_S)
        assert isinstance(step(failed, at_s + RETRY_S), Renew)


def test_hurry_renews_at_once_and_once():
    assert isinstance(step(GRANTED.hurried(), 100.1), Renew)
    assert isinstance(step(GRANTED.hurried().failed(100.2), 100.2), Wait)
    assert isinstance(step(GRANTED.hurried().acknowledged(100.1), 100.2), Wait)


def test_the_last_attempt_does_not_outlive_the_lease():
    assert step(GRANTED.failed(105.0), 105.5) == Renew(0.5)


def test_lapsed_from_the_ttl_after_the_last_acknowledged_send_even_in_a_hurry():
    assert step(GRANTED, 106.0) == Lapsed()
    assert step(GRANTED.hurried(), 106.0) == Lapsed()
    assert step(GRANTED.failed(105.9), 107.0) == Lapsed()


def test_an_acknowledgement_counts_from_its_send_time():
    assert GRANTED.acknowledged(102.0).lapses_at_s == 108.0


@given(
    ttl=st.floats(1, 600),
    now=st.floats(0, 700),
    failed=st.none() | st.floats(0, 700),
    urgent=st.booleans(),
    jitter=st.floats(0, 1),
)
def test_never_beyond_the_lease_and_always_something_to_do(ttl, now, failed, urgent, jitter):
    renewals = Renewals(ttl, 0.0, failed, urgent)
    decided = step(renewals, now, jitter)
    if now >= ttl:
        assert decided == Lapsed()
    elif isinstance(decided, Wait):
        assert now < decided.until_s <= ttl
    else:
        assert isinstance(decided, Renew)
        assert 0 < decided.timeout_s <= min(2.0, ttl - now)
