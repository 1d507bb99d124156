"""A round put together from what etcd holds, and where the time of a restart went."""

from dataclasses import replace

import pytest
from record_kit import END, FIRST, KEYS, RAISED, ROOT, SEATS, SECOND, at, restarted

from nvrx_async.job.codec import encode
from nvrx_async.job.errors import RecordError
from nvrx_async.job.records import FaultKind, Level, Mark, Outcome, Phase
from nvrx_async.job.round_record import Before, assembled, round_record
from nvrx_async.job.waterfall import waterfall


def test_a_round_that_ended_is_told_whole_though_the_round_key_speaks_of_the_next():
    record = round_record(KEYS, 0, restarted())
    assert (record.phase, record.world_size, record.seats) == (Phase.ENDED, 4, SEATS)
    assert (record.root, record.level, record.decision) == (
        ROOT,
        Level.IN_JOB,
        "restart 1 of --max-restarts 3",
    )
    assert [end.rank for _, _, end in record.ends] == [0, 1, 2, 3]
    assert record.ends[1] == ("a", "host-a", RAISED)
    assert record.times.opened_utc == at(0.0)
    assert record.times.running_utc == at(1.0)
    assert record.before is None


def test_the_fault_is_when_the_first_node_saw_it_and_all_else_when_the_last_one_was_there():
    times = round_record(KEYS, 0, restarted()).times
    assert times.fault_utc == at(60.0), "the rank's end, before its agent's look at it"
    assert (times.told_utc, times.gone_utc, times.reported_utc) == (at(60.06), at(60.4), at(60.45))


def test_the_running_round_names_what_came_before():
    record = round_record(KEYS, 1, restarted(finished=False))
    assert (record.phase, record.seats) == (Phase.RUNNING, SEATS), (
        "nobody moved: the seal of round 0 still holds"
    )
    assert record.why == ROOT.sentence
    assert record.before == Before(0, ROOT.sentence, Level.IN_JOB, at(60.5))
    assert record.root is None
    assert record.digest == ""


def test_the_verdict_in_the_round_serves_where_the_end_itself_is_not_known():
    record = assembled(KEYS, 0, now_round=SECOND)
    assert (record.root, record.level) == (ROOT, Level.IN_JOB)
    assert assembled(KEYS, 1, now_round=SECOND).before == Before(0, ROOT.sentence, Level.IN_JOB, at(60.5))


def test_the_last_round_has_the_outcome():
    outcome = Outcome(success=True, exit_code=0, reason="all ranks finished", round=1, decided_utc=at(91.0))
    held = {**restarted(), KEYS.outcome: encode(outcome)}
    assert round_record(KEYS, 1, held).success
    assert round_record(KEYS, 1, held).done == ("a", "b")
    assert round_record(KEYS, 0, held).outcome is None


def test_equal_evidence_has_an_equal_digest():
    record = round_record(KEYS, 0, restarted())
    assert record.digest == round_record(KEYS, 0, restarted(finished=False)).digest
    other = assembled(KEYS, 0, verdict=replace(END, root=replace(ROOT, kind=FaultKind.HARDWARE)))
    assert record.digest != other.digest


def test_a_value_that_is_no_record_is_named():
    with pytest.raises(RecordError, match=r"rounds/0/end"):
        round_record(KEYS, 0, {**restarted(), KEYS.end(0): b"[]"})


def test_a_waterfall_has_no_gaps_and_ends_at_the_last_rank_s_first_step():
    held = restarted()
    fall = waterfall(round_record(KEYS, 0, held), round_record(KEYS, 1, held))
    assert fall is not None
    assert fall.complete
    assert fall.seconds == pytest.approx(4.0)
    assert fall.covered == 1.0
    assert sum(step.seconds for step in fall.steps) == pytest.approx(fall.seconds)
    names = ["told", "stopped", "reaped", "reported", "ended", "sealed", "released", "started", "connected"]
    assert [step.name for step in fall.steps] == [*names, "first step"]
    assert fall.steps[-1].last == "a"
    assert all(one.end_utc == two.start_utc for one, two in zip(fall.steps, fall.steps[1:], strict=False))


def test_moments_that_nobody_told_are_named_and_held_by_the_step_behind_them():
    held = restarted()
    following = round_record(KEYS, 1, held)
    following = replace(following, times=replace(following.times, hello_utc="", started_utc=""))
    fall = waterfall(round_record(KEYS, 0, held), following)
    assert fall is not None
    assert fall.missing == ("started", "connected")
    assert fall.steps[-1].name == "started + connected + first step"
    assert fall.seconds == pytest.approx(4.0)
    assert fall.covered < 0.5


def test_a_clock_that_runs_behind_cuts_a_step_to_nothing_and_never_below():
    held = restarted()
    ended = round_record(KEYS, 0, held)
    skewed = replace(ended, times=replace(ended.times, reported_utc=at(58.0)))
    fall = waterfall(skewed, round_record(KEYS, 1, held))
    assert fall is not None
    assert all(step.seconds >= 0 for step in fall.steps)
    assert fall.seconds == pytest.approx(4.0)


def test_a_restart_under_way_is_not_complete():
    held = restarted(finished=False)
    fall = waterfall(round_record(KEYS, 0, held), round_record(KEYS, 1, held))
    assert fall is not None
    assert not fall.complete
    assert fall.steps[-1].name == "sealed"


def test_a_round_that_runs_has_no_waterfall():
    held = restarted(finished=False)
    assert waterfall(round_record(KEYS, 1, held), None) is None
    assert waterfall(assembled(KEYS, 0, now_round=FIRST), None) is None


def test_marks_of_a_node_are_kept_by_name():
    (a, b) = round_record(KEYS, 1, restarted()).nodes
    assert (a.node_id, a.host, b.host) == ("a", "host-a", "host-b")
    assert a.at_utc[Mark.JOINED] == at(60.3)
    assert Mark.FAULT not in a.at_utc
