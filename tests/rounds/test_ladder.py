"""What follows a round that ended by a fault, and what it is billed to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_async.job.records import EndedBy, FaultKind, JobSpec, Ledger, Level, RankEnd, Root
from nvrx_async.rounds.ladder import START_RETRIES, next_level

K = FaultKind
MEMBERSHIP = [kind for kind in FaultKind if kind.is_membership]


def policy(max_restarts):
    return JobSpec(("train.py",), 1, 2, max_restarts, 6, 15.0, 120.0, 600.0, 5.0)


def root(kind=K.EXCEPTION, *, ready=True, fingerprint=None, rank=True):
    end = RankEnd(0, 0, 1, kind, EndedBy.ITSELF, exit_code=1, ready=ready) if rank else None
    return Root(kind, "why", "node-a", "host-a", end=end, fingerprint=fingerprint)


def decide(ledger, why, max_restarts, *, nothing_ready=False):
    return next_level(ledger, why, policy(max_restarts), nothing_ready=nothing_ready)


@pytest.mark.parametrize("kind", MEMBERSHIP)
@pytest.mark.parametrize("max_restarts", [0, 3])
def test_the_loss_of_a_node_is_not_billed_to_the_training(kind, max_restarts):
    before = Ledger(restarts=max_restarts, start_failures=1, membership=4, last_fingerprint="f")

    verdict = decide(before, root(kind, rank=False), max_restarts, nothing_ready=True)

    assert (verdict.level, verdict.exit_code) == (Level.IN_JOB, None)
    assert verdict.ledger == replace(before, membership=5)
    assert "not billed" in verdict.reason


def test_restarts_are_counted_and_end():
    ledger, reasons = Ledger(), []
    while (verdict := decide(ledger, root(K.SIGNAL), 3)).level is Level.IN_JOB:
        ledger = verdict.ledger
        reasons.append(verdict.reason)

    assert reasons == [f"restart {n} of --max-restarts 3" for n in (1, 2, 3)]
    assert (verdict.level, verdict.exit_code) == (Level.STOP, 1)
    assert verdict.reason == "all 3 restarts of --max-restarts are spent"
    assert verdict.hint
    assert verdict.ledger.restarts == 3


def test_one_restart_reads_well():
    assert decide(Ledger(restarts=1), root(), 1).reason == "the one restart of --max-restarts is spent"


@pytest.mark.parametrize("ready", [True, False])
def test_without_restarts_nothing_is_tried_again(ready):
    verdict = decide(Ledger(), root(ready=ready), 0)

    assert (verdict.level, verdict.exit_code) == (Level.STOP, 1)
    assert verdict.hint == "--max-restarts N lets it try again"


def test_the_same_error_at_the_same_place_is_tried_twice():
    first = decide(Ledger(), root(ready=False, fingerprint="f"), 8)
    assert first.level is Level.IN_JOB

    second = decide(first.ledger, root(ready=False, fingerprint="f"), 8)

    assert (second.level, second.exit_code) == (Level.STOP, 93), "a requeue would repeat it"
    assert "tried twice" in second.reason


def test_another_error_or_none_in_between_starts_anew():
    ledger = decide(Ledger(), root(fingerprint="f"), 9).ledger
    for fingerprint in ("g", "f", None, "f"):
        verdict = decide(ledger, root(fingerprint=fingerprint), 9)
        assert verdict.level is Level.IN_JOB
        ledger = verdict.ledger


def test_a_lost_node_in_between_does_not_excuse_an_error():
    ledger = decide(Ledger(), root(fingerprint="f"), 9).ledger
    ledger = decide(ledger, root(K.NODE_LOST, rank=False), 9).ledger

    assert decide(ledger, root(fingerprint="f"), 9).level is Level.STOP


def test_errors_that_may_go_away_are_never_the_same():
    ledger = decide(Ledger(), root(K.SIGNAL), 9).ledger

    assert decide(ledger, root(K.SIGNAL), 9).level is Level.IN_JOB


@pytest.mark.parametrize(
    ("why", "nothing_ready"),
    [
        (root(ready=False), False),
        (root(K.START_FAILED, rank=False), False),
        (root(K.START_FAILED, ready=True), False),
        (root(K.HARDWARE, rank=False), True),
    ],
)
def test_a_failed_start_has_its_own_small_budget(why, nothing_ready):
    ledger, tries = Ledger(), 0
    while (verdict := decide(ledger, why, 50, nothing_ready=nothing_ready)).level is Level.IN_JOB:
        ledger = verdict.ledger
        tries += 1

    assert tries == START_RETRIES
    assert ledger.restarts == 0
    assert (verdict.level, verdict.exit_code) == (Level.STOP, 1)
    assert "failed 3 times before it was ready" in verdict.reason


@pytest.mark.parametrize(
    ("why", "nothing_ready"), [(root(ready=True), True), (root(K.HARDWARE, rank=False), False)]
)
def test_a_training_that_was_ready_did_start(why, nothing_ready):
    verdict = decide(Ledger(), why, 5, nothing_ready=nothing_ready)

    assert (verdict.ledger.restarts, verdict.ledger.start_failures) == (1, 0)


def test_failed_starts_get_no_more_tries_than_restarts_would():
    ledger = decide(Ledger(), root(ready=False), 1).ledger

    assert decide(ledger, root(ready=False), 1).level is Level.STOP


def test_a_training_that_was_ready_clears_the_failed_starts():
    verdict = decide(Ledger(start_failures=2), root(ready=True), 5)

    assert verdict.ledger == Ledger(restarts=1, start_failures=0)


def test_what_newer_versions_noted_is_kept():
    ledger = Ledger(extra={"window": 3})

    for why in (root(), root(ready=False), root(K.NODE_LOST)):
        assert decide(ledger, why, 2).ledger.extra == {"window": 3}


def test_what_somebody_asked_for_is_billed_to_nobody():
    ledger = Ledger(restarts=1, last_fingerprint="f")
    verdict = decide(ledger, root(K.ASKED), 0)
    assert (verdict.level, verdict.ledger, verdict.exit_code) == (Level.IN_JOB, ledger, None)


ROOTS = st.builds(
    root,
    st.sampled_from([kind for kind in FaultKind if kind is not FaultKind.ASKED]),
    ready=st.booleans(),
    fingerprint=st.sampled_from([None, "f", "g"]),
    rank=st.booleans(),
)


@given(
    history=st.lists(st.tuples(ROOTS, st.booleans()), max_size=60),
    max_restarts=st.integers(0, 4),
)
def test_no_history_spends_more_than_it_has(history, max_restarts):
    ledger, starts, last, billed = Ledger(), 0, None, 0
    for why, nothing_ready in history:
        verdict = decide(ledger, why, max_restarts, nothing_ready=nothing_ready)
        assert verdict.reason
        assert verdict.exit_code in ((1, 93) if verdict.level is Level.STOP else (None,))
        assert bool(verdict.hint) is (verdict.level is Level.STOP)
        if verdict.level is Level.STOP:
            assert not why.kind.is_membership
            break
        assert verdict.level is Level.IN_JOB
        if not why.kind.is_membership:
            billed += 1
            starts = starts + 1 if verdict.ledger.restarts == ledger.restarts else 0
            assert why.fingerprint is None or why.fingerprint != last
            last = why.fingerprint
        ledger = verdict.ledger
        assert ledger.restarts <= max_restarts
        assert starts <= min(START_RETRIES, max_restarts)
        assert billed <= max_restarts + (max_restarts + 1) * START_RETRIES
        assert max_restarts > 0 or billed == 0
