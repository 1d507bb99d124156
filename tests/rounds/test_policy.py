"""What follows a round that ended by a fault, all rules together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_kit import rank_end, spec

from nvrx_async.job.codec import decode, encode
from nvrx_async.job.records import (
    PROGRESS,
    EndedBy,
    Fault,
    FaultKind,
    Ledger,
    Level,
    Policy,
    PythonError,
    Root,
)
from nvrx_async.rounds.policy import CULPRIT_ROUNDS, Facts, facts_of, verdict

K = FaultKind


def root(kind=K.SIGNAL, node_id="b", *, culprit=True, fingerprint=None, **end):
    ended = None if kind.is_membership else rank_end(2, kind, **end)
    return Root(kind, "why", node_id, f"host-{node_id}", culprit, ended, fingerprint)


def policy(max_restarts=100, **changes):
    return spec(max_restarts=max_restarts, policy=Policy(**changes))


def rounds(of, *told):
    """One round after another until the job stops; what was decided."""
    ledger, found = Ledger(), []
    for number, (why, facts) in enumerate(told):
        decided = verdict(ledger, why, of, replace(facts, number=number))
        ledger = decode(Ledger, "ledger", encode(decided.ledger))
        assert ledger == decided.ledger
        found.append(decided)
        if decided.level in (Level.STOP, Level.REQUEUE):
            break
    return found


def test_non_retryable_stops_with_its_exit_code_whatever_is_left():
    for error in ("NonRetryable", "nvrx_async.NonRetryable"):
        decided = verdict(
            Ledger(), root(K.EXCEPTION, error=PythonError(error, "bad data")), policy(), Facts(0)
        )
        assert (decided.level, decided.exit_code) == (Level.STOP, 93)
        assert "NonRetryable" in decided.reason
    by_code = root(K.EXIT_CODE, exit_code=93)
    assert verdict(Ledger(), by_code, policy(), Facts(0)).exit_code == 93
    victim = replace(by_code, culprit=False)
    assert verdict(Ledger(), victim, policy(), Facts(0)).level is Level.IN_JOB


def test_the_same_deterministic_error_twice_is_not_to_be_requeued():
    told = [(root(K.EXCEPTION, fingerprint="f"), Facts(0))] * 2
    assert [one.exit_code for one in rounds(policy(), *told)] == [None, 93]


def test_the_same_error_further_on_is_another_failure():
    told = [(root(K.EXCEPTION, fingerprint="f"), Facts(0, step=step)) for step in (10, 25, 26, 26)]
    assert [one.exit_code for one in rounds(policy(progress_limit=0), *told)] == [None, None, None, 93]


@pytest.mark.parametrize(
    ("ran_s", "decided"), [(1.0, 4), (400.0, 10), (299.0, 4)], ids=["at once", "seldom", "just too often"]
)
def test_intensity_is_counted_in_seconds_of_training(ran_s, decided):
    of = policy(restart_limit=3, restart_window_s=900.0)
    found = rounds(of, *[(root(node_id=str(n)), Facts(0, ran_s=ran_s)) for n in range(10)])
    assert len(found) == decided
    if decided < 10:
        assert (found[-1].level, found[-1].exit_code) == (Level.STOP, 1)
        assert found[-1].reason == "more than 3 restarts within 900 s of training (--restart-limit)"


def test_rounds_that_come_no_further_are_counted_and_progress_forgives_them():
    of = policy(progress_limit=3)
    steps = [10, 10, 9, 11, 11, 11, 11]
    found = rounds(of, *[(root(node_id=str(n)), Facts(0, step=step)) for n, step in enumerate(steps)])
    assert len(found) == 7
    assert [one.ledger.standstill for one in found] == [0, 1, 2, 0, 1, 2, 3]
    assert (found[-1].level, found[-1].exit_code) == (Level.STOP, 93)
    assert found[-1].reason == "no progress in 3 rounds: none came beyond step 11 (--no-progress-limit)"


def test_a_file_that_is_written_is_progress():
    of = policy(progress_limit=2)
    found = rounds(
        of, *[(root(node_id=str(n)), Facts(0, file_s=at)) for n, at in enumerate([5.0, 6.0, 6.0, 6.0])]
    )
    assert len(found) == 4
    assert "the last write of the progress file" in found[-1].reason


def test_where_progress_is_not_measured_its_limit_stops_nobody():
    found = rounds(policy(progress_limit=1), *[(root(node_id=str(n)), Facts(0)) for n in range(9)])
    assert all(one.level is Level.IN_JOB for one in found)


def test_lost_nodes_and_restarts_that_were_asked_for_say_nothing_of_progress():
    told = [
        (root(), Facts(0, step=5)),
        *[(root(K.NODE_LOST), Facts(0, step=5))] * 3,
        (root(K.ASKED), Facts(0, step=5)),
    ]
    found = rounds(policy(progress_limit=2), *told)
    assert [one.ledger.standstill for one in found] == [0] * 5
    assert all(one.ledger.restarts == 1 for one in found)


def test_a_node_to_blame_twice_gives_its_seat_to_a_spare():
    spare = Facts(0, spares=("c",))
    first, second = rounds(policy(), (root(), spare), (root(), spare))
    assert (first.level, first.replaces) == (Level.IN_JOB, None)
    assert (second.level, second.replaces) == (Level.REPLACE_NODE, "b")
    assert second.reason.endswith("b is to blame for the 2nd time in 10 rounds: c takes its ranks")
    assert second.ledger.restarts == 2, "a replacement is a restart as well"
    assert second.ledger.culprits == {}


def test_without_a_spare_it_stays_and_the_reason_says_so():
    found = rounds(policy(), (root(), Facts(0)), (root(), Facts(0)), (root(), Facts(0, spares=("c",))))
    assert found[1].level is Level.IN_JOB
    assert "but no spare waits that could replace it" in found[1].reason
    assert found[2].replaces == "b"


@pytest.mark.parametrize(
    "why",
    [
        root(by=EndedBy.SOMEONE_ELSE, signal=9),
        root(culprit=False),
        root(K.EARLY_EXIT),
        root(K.KEEPER_LOST),
        replace(root(), node_id=None),
    ],
    ids=["killed by somebody", "victim", "left early", "keeper lost", "nobody"],
)
def test_who_is_not_to_blame_is_never_replaced(why):
    found = rounds(policy(), *[(why, Facts(0, spares=("c",)))] * 5)
    assert all(one.replaces is None for one in found)


def test_old_faults_of_a_node_are_forgotten():
    spare = Facts(0, spares=("c",))
    others = [(root(node_id=f"x{n}"), spare) for n in range(CULPRIT_ROUNDS)]
    found = rounds(policy(), (root(), spare), *others, (root(), spare))
    assert all(one.replaces is None for one in found)


def test_a_lost_node_is_replaced_where_a_spare_waits():
    with_spare, without = rounds(
        policy(), (root(K.NODE_LOST), Facts(0, spares=("c",))), (root(K.NODE_LOST), Facts(0))
    )
    assert (with_spare.level, without.level) == (Level.REPLACE_NODE, Level.IN_JOB)
    assert "c takes its ranks" in with_spare.reason
    assert with_spare.ledger.restarts == 0


def test_nodes_that_come_and_go_without_end_are_bounded_apart():
    of = policy(max_restarts=0, node_loss_limit=5)
    found = rounds(of, *[(root(K.NODE_LOST), Facts(0, ran_s=1.0))] * 9)
    assert len(found) == 6
    assert (found[-1].level, found[-1].exit_code) == (Level.REQUEUE, 75)
    seldom = rounds(of, *[(root(K.NODE_LOST), Facts(0, ran_s=1000.0))] * 9)
    assert len(seldom) == 9


def test_facts_are_those_of_all_reports():
    def report(name, step, ran_s, **extra):
        ends = (rank_end(0, K.SIGNAL, ready=False, ran_s=ran_s),)
        return Fault(name, f"{name}-1", name, ends, extra={PROGRESS: {"step": step, **extra}})

    faults = {
        "a": report("a", 7, 3.0),
        "b": report("b", 9, 2.0, file_s=4.5),
        "c": report("c", "x", 1.0, file_s=None),
    }
    assert facts_of(4, faults, ("s",)) == Facts(4, True, 3.0, 9, 4.5, ("s",))
    assert facts_of(4, {}, ()) == Facts(4, nothing_ready=True)


ROOTS = st.builds(
    root,
    st.sampled_from(FaultKind),
    node_id=st.sampled_from("abc"),
    fingerprint=st.sampled_from([None, "f", "g"]),
)
FACTS = st.builds(
    Facts,
    number=st.just(0),
    ran_s=st.floats(0, 2000),
    step=st.integers(-1, 20),
    spares=st.sampled_from([(), ("s",)]),
)


@given(
    history=st.lists(st.tuples(ROOTS, FACTS), max_size=40),
    restarts=st.integers(0, 20),
    limit=st.integers(0, 3),
    standstill=st.integers(0, 3),
)
def test_no_history_spends_more_than_its_limits(history, restarts, limit, standstill):
    of = policy(restarts, restart_limit=limit, progress_limit=standstill, node_loss_limit=4)
    for decided in rounds(of, *history):
        assert decided.reason
        stops = decided.level in (Level.STOP, Level.REQUEUE)
        assert (decided.exit_code is not None) is stops
        assert decided.ledger.restarts <= restarts
        assert len(decided.ledger.loss_ages_s) <= 5
        assert decided.replaces is None or decided.level is Level.REPLACE_NODE
        if not stops:
            assert not limit or len(decided.ledger.restart_ages_s) <= limit
            assert not standstill or decided.ledger.standstill < standstill
