"""Names of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_async.etcd.types import Scope
from nvrx_async.job.errors import InvalidNameError
from nvrx_async.job.keys import ROOT, AttemptKeys, checked_name, current, job_scope

KEYS = AttemptKeys("run-7", 3)
EVERY_KEY = [
    KEYS.job,
    KEYS.outcome,
    KEYS.round,
    KEYS.node("n1"),
    KEYS.election(0xABC),
    KEYS.election(0xABC, 2),
    KEYS.join(4, "n1"),
    KEYS.world(4, "tok", 0),
    KEYS.assignment(4, "tok", "n1"),
    KEYS.interrupt(4),
    KEYS.fault(4, "n1"),
    KEYS.done(4, "n1"),
    KEYS.end(4),
]


@pytest.mark.parametrize("name", ["a", "A9", "node-1.rack_2", "9", "x" * 128])
def test_good_names(name):
    assert checked_name("node id", name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", ".hidden", "-x", "_x", "a b", "a\n", "\x00", "é", "x" * 129, "a%2f"]
)
def test_bad_names_are_refused_and_named(name):
    with pytest.raises(InvalidNameError) as caught:
        checked_name("run id", name)
    assert repr(name) in str(caught.value)
    assert "run id" in str(caught.value)


@pytest.mark.parametrize("key", EVERY_KEY)
def test_all_keys_lie_in_their_job_and_their_attempt_only(key):
    assert key.startswith(f"{ROOT}/run-7/3/")
    assert job_scope("run-7").covers(key)
    assert not job_scope("run").covers(key)
    assert not job_scope("run-70").covers(key)
    assert AttemptKeys.holding(key) == KEYS


def test_keys_are_all_different():
    assert len(set(EVERY_KEY)) == len(EVERY_KEY)


def test_current_belongs_to_the_job_and_to_no_attempt():
    assert job_scope("run-7").covers(current("run-7"))
    assert not current("run-7").startswith(KEYS.base)


def test_scopes_cover_their_keys_and_no_neighbours():
    assert KEYS.nodes.covers(KEYS.node("n1"))
    assert not KEYS.nodes.covers(KEYS.election(1))
    assert KEYS.elections.covers(KEYS.election(1, 5))
    assert KEYS.joins(4).covers(KEYS.join(4, "n1"))
    assert not KEYS.joins(4).covers(KEYS.join(40, "n1"))
    assert not KEYS.round_scope(4).covers(KEYS.end(40))
    assert KEYS.interrupts.covers(KEYS.interrupt(4))
    assert not KEYS.interrupts.covers(KEYS.end(4))
    assert KEYS.worlds(4, "tok").covers(KEYS.world(4, "tok", 12))
    assert not KEYS.worlds(4, "tok").covers(KEYS.world(4, "tok2", 0))
    assert not KEYS.worlds(4, "tok").covers(KEYS.assignment(4, "tok", "world"))
    assert Scope(KEYS.node("n1")).covers(KEYS.node("n1"))
    assert not Scope(KEYS.node("n1")).covers(KEYS.node("n12"))


def test_a_resigned_candidacy_is_another_key_of_the_same_lease():
    assert KEYS.election(0xA) == KEYS.election(0xA, 0)
    assert KEYS.election(0xA, 1) != KEYS.election(0xA)
    assert KEYS.election(0xAB, 1) != KEYS.election(0xA, 1)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True), st.integers(0, 10**6))
def test_the_attempt_of_a_key_is_found_again(run_id, attempt):
    keys = AttemptKeys(checked_name("run id", run_id), attempt)
    assert AttemptKeys.holding(keys.node("a")) == keys
