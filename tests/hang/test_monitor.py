"""The monitor over worlds made by hand: what is hung, what is suspect, what is nothing, and when it looks."""

from __future__ import annotations

import pytest
from hang_kit import Rank, busy, page, run, section, side_thread, silent, still, thread

from nvrx_async.hang.monitor import HangMonitor, Look, Seen
from nvrx_async.hang.policy import Action, HangPolicy
from nvrx_async.ranklink.page import NameView

POLICY = HangPolicy(timeout_s=100.0, startup_s=200.0)


def monitor(
    policy: HangPolicy = POLICY, *, ranks: int = 1, expected: bool = False, known=None
) -> HangMonitor:
    return HangMonitor(policy, range(ranks), 0.0, known=known or {}, expected=expected)


def test_steps_that_go_on_are_nothing():
    watch = monitor()
    assert run(watch, 10_000, lambda now: busy(page(now, thread(now - 0.2, int(now))))) == []


def test_the_timeout_is_met_exactly():
    ((at_s, sentence, hung),) = run(monitor(), 200, lambda now: busy(page(now, thread(min(now, 30.0), 4))))
    assert (at_s, hung) == (130.0, True)
    assert "step 4" in sentence


def test_it_looks_only_when_something_is_due():
    watch = monitor()
    look = watch.look(0.0, 0.0, {0: busy(page(0.0, thread(0.0, 1)))})
    assert look.next_s >= POLICY.timeout_s / 4


def test_a_learned_limit_with_standing_still_is_enough():
    watch = monitor(known={"reports": 50.0})
    ((at_s, _, hung),) = run(watch, 95, lambda now: still(page(now, thread(min(now, 30.0), 4))))
    assert hung
    assert at_s == pytest.approx(80.0)


def test_a_learned_limit_alone_is_told_and_kills_at_the_timeout():
    watch = monitor(known={"reports": 50.0})
    found = run(watch, 200, lambda now: busy(page(now, thread(min(now, 30.0), 4))))
    assert [(at_s, hung) for at_s, _, hung in found] == [(pytest.approx(80.0), False), (130.0, True)]


def test_limits_are_learned_from_the_pages_and_longer_times_raise_them():
    watch = monitor(HangPolicy(1000.0, 2000.0))
    names = (NameView("step", 50, 30.0, 40.0),)
    watch.look(1.0, 1.0, {0: busy(page(1.0, thread(1.0, 50, reports=60, gap_s=2.0), names=names))})
    assert watch.seen == {"reports": 2.0, "section:step": 40.0}


def test_a_long_first_step_teaches_nothing():
    watch = monitor()
    watch.look(
        1.0, 1.0, {0: busy(page(1.0, thread(1.0, 3, reports=4), names=(NameView("step", 1, 30.0, 0.0),)))}
    )
    assert watch.seen == {}


@pytest.mark.parametrize("name", ["step", "save"])
def test_the_first_time_after_a_restart_is_not_judged_by_what_earlier_rounds_taught(name):
    def rank(now: float) -> Seen:
        return still(page(now, thread(1.0, 0, opened=1), sections=(section(name, now, now - 1.0),)))

    known = {"section:step": 5.0, "section:save": 5.0, "reports": 5.0}
    assert [at_s for at_s, _, _ in run(monitor(known=known), 150, rank, start_s=2.0)] == [101.0]


def test_one_report_is_not_judged_by_what_earlier_rounds_taught():
    def rank(now: float) -> Seen:
        return still(page(now, thread(1.0, 0, reports=1)))

    assert [at_s for at_s, _, _ in run(monitor(known={"reports": 5.0}), 150, rank, start_s=2.0)] == [101.0]


def test_a_start_that_a_person_gave_holds_the_first_step():
    def in_section(now: float) -> Seen:
        return still(page(now, thread(50.0, 0, opened=1), sections=(section("step", now, now - 50.0),)))

    def between_reports(now: float) -> Seen:
        return still(page(now, thread(50.0, 0, reports=1)))

    def later(now: float) -> Seen:
        names = (NameView("step", 1, 30.0, 0.0),)
        sections = (section("step", now, now - 50.0),)
        return still(page(now, thread(50.0, 1, opened=1), sections=sections, names=names))

    policy = HangPolicy(100.0, 400.0, startup_given=True)
    for rank, due_s in ((in_section, 400.0), (between_reports, 400.0), (later, 150.0)):
        assert [at_s for at_s, _, _ in run(monitor(policy), 500, rank, start_s=51.0)] == [due_s]


def test_a_section_has_the_limit_of_its_name_unless_the_script_brings_one():
    policy = HangPolicy(100.0, 200.0, section_limits_s={"setup": 300.0, "step": 20.0})

    def named(name: str, limit_s: float | None = None, *, seen: int = 9):
        def rank(now: float) -> Seen:
            names = (NameView(name, seen, 1.0, 1.0),) if seen else ()
            sections = (section(name, now, now, limit_s=limit_s),)
            return still(page(now, thread(0.0, 1, opened=1), sections=sections, names=names))

        return [at_s for at_s, _, hung in run(monitor(policy), 400, rank) if hung]

    assert named("setup") == [300.0], "longer than the time-out, and nothing that was learned comes before it"
    assert named("step") == [20.0], "and shorter"
    assert named("setup", 50.0) == [50.0]
    assert named("step", seen=0) == [100.0], "a first step has the time-out"
    assert named("save", seen=0) == [100.0]


@pytest.mark.parametrize(
    ("limits", "told"), [({"save": 20.0}, None), ({}, 20.0)], ids=["by name", "by the script, seen before"]
)
def test_a_limit_much_shorter_than_the_time_out_is_found_in_time(limits, told):
    """Nobody looks between two looks: they are no further apart than the shortest limit that is known."""
    names = (NameView("save", 3, 1.0, 1.0, told),)

    def rank(now: float) -> Seen:
        if now < 41.0:
            return busy(page(now, thread(now, 1), names=names))
        sections = (section("save", now, now - 41.0, limit_s=told),)
        return busy(page(now, thread(41.0, 1, opened=1), sections=sections, names=names))

    policy = HangPolicy(1000.0, 2000.0, section_limits_s=limits)
    assert [at_s for at_s, _, hung in run(monitor(policy), 300, rank) if hung] == [pytest.approx(61.0)]


def test_a_start_of_several_sections_lasts_until_the_first_step():
    """Data are prepared outside of any section, after the one in which the model was made."""

    def after(*names: str, step: int | None = None):
        def rank(now: float) -> Seen:
            told = tuple(NameView(name, 1, 9.0, 0.0) for name in names)
            return still(page(now, thread(50.0, step, reports=2), names=told))

        policy = HangPolicy(100.0, 400.0, startup_given=True, section_limits_s=limits)
        return [at_s for at_s, _, _ in run(monitor(policy), 500, rank, start_s=51.0)]

    limits = {"setup": 90.0}
    assert after("setup") == [400.0]
    assert after("setup", "step") == [150.0]
    assert after("setup", step=0) == [150.0]
    assert after() == [150.0], "beats alone: the second one is the end of a step"
    limits = {}
    assert after("setup") == [150.0], "nobody has named the parts of this job, which may have no steps"


def test_a_job_without_steps_and_without_named_limits_learns_what_lies_between_its_sections():
    def rank(now: float) -> Seen:
        names = (NameView("epoch", 9, 9.0, 9.0),)
        return still(page(now, thread(min(now, 30.0), reports=9), names=names))

    assert [at_s for at_s, _, _ in run(monitor(known={"reports": 50.0}), 95, rank)] == [80.0]


@pytest.mark.parametrize(("name", "found"), [("load", [400.0]), ("setup", [140.0]), ("step", [400.0])])
def test_a_section_that_nobody_has_named_is_part_of_the_start_before_the_first_step(name, found):
    def rank(now: float) -> Seen:
        return busy(page(now, thread(50.0, opened=1), sections=(section(name, now, now - 50.0),)))

    policy = HangPolicy(60.0, 400.0, startup_given=True, section_limits_s={"setup": 90.0, "step": 30.0})
    assert [at_s for at_s, _, _ in run(monitor(policy), 500, rank, start_s=51.0)] == found


def test_a_section_without_any_limit_is_watched_from_outside_only():
    """Nobody is killed for it, and nobody is excused by it: it has no end that others could wait for."""

    def at_work(now: float) -> Seen:
        return busy(page(now, thread(5.0, 1, opened=1), sections=(section("save", now, now - 5.0),)))

    def stands(now: float) -> Seen:
        return still(page(now, thread(5.0, 1, opened=1), sections=(section("save", now, now - 5.0),)))

    policy = HangPolicy(100.0, 200.0, section_limits_s={"save": None})
    assert run(monitor(policy), 5000, at_work, start_s=6.0) == []
    assert [hung for _, _, hung in run(monitor(policy), 500, stands, start_s=6.0)] == [False]
    assert monitor(policy).open_sections({0: at_work(50.0).page}) == ()


def test_a_limit_for_starts_that_are_watched_only_where_ranks_report():
    """As ft_launcher's limit of the first heartbeat: it judges who has said hello and reported, nobody else."""
    policy = HangPolicy(100.0, 400.0, startup_given=True, first_report_s=150.0)
    assert run(monitor(policy), 900, silent_busy) == []
    assert [at_s for at_s, _, _ in run(monitor(policy, expected=True), 900, silent_busy)] == [400.0]

    def connects(now: float) -> Seen:
        return busy(page(now, hello_s=170.0 if now >= 170 else None))

    found = run(monitor(policy, expected=True), 900, connects)
    assert [at_s for at_s, _, _ in found] == [pytest.approx(320.0)], (
        "it counts from where the client connected"
    )


def test_an_inner_section_is_judged_by_its_own_deadline_though_an_outer_one_is_fresh():
    def rank(now: float) -> Seen:
        inner, outer = section("save", now, now - 5.0), section("epoch", now, 3.0, runs=False)
        return busy(page(now, thread(5.0, 1, opened=2), sections=(outer, inner)))

    ((at_s, sentence, hung),) = run(monitor(), 150, rank, start_s=6.0)
    assert (at_s, hung) == (105.0, True)
    assert "save" in sentence


def test_an_outer_section_is_not_late_for_the_time_in_an_inner_one():
    def rank(now: float) -> Seen:
        inner = section("save", now, now - 5.0, limit_s=5000.0)
        return busy(
            page(now, thread(5.0, 1, opened=2), sections=(section("step", now, 2.0, runs=False), inner))
        )

    assert run(monitor(), 4000, rank, start_s=6.0) == []


def test_an_outer_section_that_was_late_stays_late_with_a_fresh_inner_one():
    def rank(now: float) -> Seen:
        outer, inner = section("step", now, 101.0, runs=False), section("save", now, 1.0)
        return busy(page(now, thread(now, 1, opened=2), sections=(outer, inner)))

    assert [hung for _, _, hung in run(monitor(), 105, rank, start_s=104.0)] == [True]


def test_a_limit_given_in_the_script_outranks_what_was_learned():
    def rank(now: float) -> Seen:
        return still(
            page(now, thread(1.0, 1, opened=1), sections=(section("save", now, now - 1, limit_s=900.0),))
        )

    ((at_s, _, _),) = run(monitor(known={"section:save": 1.0}), 1000, rank, start_s=2.0)
    assert at_s == 901.0


def test_a_beat_of_a_side_thread_does_not_hide_a_stuck_training_thread():
    found = run(monitor(), 200, lambda now: busy(page(now, side_thread(now), thread(min(now, 30.0), 4))))
    assert [(at_s, hung) for at_s, _, hung in found] == [(130.0, True)]


def test_only_beats_of_a_side_thread_are_no_progress():
    """V20: the main thread never reported; standing still from outside is what can be told."""
    found = run(monitor(), 300, lambda now: still(page(now, side_thread(now))))
    assert [(at_s, hung) for at_s, _, hung in found] == [(100.0, False)]


def test_a_side_thread_that_has_steps_trains():
    """It is judged by its reports, though no step has a number: nothing is told of it for standing still."""

    def rank(now: float) -> Seen:
        names = (NameView("step", 9, 1.0, 1.0),)
        return still(page(now, side_thread(min(now, 250.0), principal=True), names=names))

    assert [(at_s, hung) for at_s, _, hung in run(monitor(), 400, rank)] == [(350.0, True)]


def test_a_start_has_its_own_limit_where_ranks_are_known_to_report():
    (late,) = run(monitor(expected=True), 300, silent_busy)
    assert (late[0], late[2]) == (200.0, True)
    policy = HangPolicy(100.0, 200.0, startup_given=True)
    assert [at_s for at_s, _, _ in run(monitor(policy), 300, silent_busy)] == [200.0]


def silent_busy(now: float) -> Seen:
    return busy(silent(now))


def test_one_rank_that_reports_shows_that_the_others_should():
    found = run(monitor(ranks=2), 300, silent_busy, lambda now: busy(page(now, thread(now, 1))))
    assert [(at_s, hung) for at_s, _, hung in found] == [(200.0, True)]


def test_a_script_that_never_calls_is_watched_from_outside():
    """V21: nothing moves for the time-out is suspect; told once, and killed only where that was asked for."""
    assert run(monitor(), 1000, silent_busy) == []
    found = run(monitor(), 1000, lambda now: still(silent(now)))
    assert [(at_s, hung) for at_s, _, hung in found] == [(100.0, False)]
    kill = HangPolicy(100.0, 200.0, Action.KILL_SUSPECTS)
    assert [hung for _, _, hung in run(monitor(kill), 150, lambda now: still(silent(now)))] == [True]


def test_output_or_a_changing_thread_is_movement():
    def writes(now: float) -> Seen:
        return still(silent(now), output_s=now - 1)

    def changes(now: float) -> Seen:
        return still(silent(now), states="S" * (1 + int(now) % 7))

    assert run(monitor(), 1000, writes) == []
    assert run(monitor(), 1000, changes) == []


def test_a_stopped_plain_script_is_hung():
    """V2: SIGSTOP; nobody goes on by himself from there."""
    found = run(
        monitor(), 300, lambda now: still(silent(now), states="T" if now >= 20 else "S", output_s=now)
    )
    assert [hung for _, _, hung in found] == [True]
    assert 120 <= found[0][0] <= 150


def test_a_second_stall_is_a_second_alarm():
    policy = HangPolicy(100.0, 200.0, Action.REPORT)

    def rank(now: float) -> Seen:
        return busy(page(now, thread(10.0 if now < 150 else 150.0, 5)))

    found = run(monitor(policy), 400, rank)
    assert [(at_s, hung) for at_s, _, hung in found] == [(110.0, False), (250.0, False)]


def test_a_late_outer_section_is_told_once_whatever_goes_on_inside_it():
    """Its own time stands while an inner section runs, so the moment that it seems to have begun moves."""

    def rank(now: float) -> Seen:
        inside = now % 50 < 20  # short ones, again and again
        outer = section("epoch", now, 101.0 + now / 2, runs=not inside)._replace(start_s=2.0)
        inner = (section("save", now, now % 50),) if inside else ()
        return busy(page(now, thread(now, 1, opened=1 + inside), sections=(outer, *inner)))

    for action in Action:
        found = run(monitor(HangPolicy(100.0, 200.0, action)), 1000, rank, start_s=204.0)
        assert [hung for _, _, hung in found] == [action is not Action.REPORT]


def look_after_pause(watch: HangMonitor, rank: Rank) -> Look:
    watch.look(0.0, 0.0, {0: rank(0.0)})
    return watch.look(5000.0, 100.0, {0: rank(5000.0)})


def test_a_paused_machine_raises_no_alarm():
    """Everything stood still, this agent too: it looks late, and what ran out meanwhile starts anew."""
    watch = monitor()
    look = look_after_pause(watch, lambda now: busy(page(now, thread(0.0, 5))))
    assert look.findings == ()
    assert look.next_s <= 5100.0
    look = watch.look(5100.0, 5100.0, {0: busy(page(5100.0, thread(0.0, 5)))})
    assert [one.hung for one in look.findings] == [True]


def test_a_pause_in_which_nothing_was_due_counts_as_one_too():
    """Renewals of the lease are the agent's own pulse; a gap between them is a pause."""
    watch = monitor()
    rank: Rank = lambda now: busy(page(now, thread(0.0, 5)))  # noqa: E731 - as short as its neighbours
    watch.look(0.0, 0.0, {0: rank(0.0)})
    watch.alive(2.0)
    watch.alive(60.0)
    look = watch.look(100.0, 100.0, {0: rank(100.0)})
    assert look.findings == ()
    assert [one.hung for one in watch.look(160.0, 160.0, {0: rank(160.0)}).findings] == [True]


def test_what_a_dead_rank_left_open_never_judges_the_next():
    """A new round has new pages and a new monitor; only limits are handed on."""
    watch = monitor()
    watch.look(
        0.0, 0.0, {0: busy(page(0.0, thread(0.0, 1, opened=1), sections=(section("save", 0.0, 0.0),)))}
    )
    watch.ended(0)
    assert watch.look(500.0, 500.0, {}).findings == ()
    assert run(monitor(), 500, lambda now: busy(page(now, thread(now, 1)))) == []


def test_who_asks_is_told_the_deadline_that_comes_first_and_nobody_is_judged_by_that():
    watch = monitor(ranks=2, known={"reports": 50.0})
    pages = {
        0: page(60.0, thread(40.0, 4)),
        1: page(60.0, thread(59.0, 9, opened=1), sections=(section("save", 60.0, 40.0),)),
    }
    found = watch.pending(pages)
    assert (found[0].at_s, found[0].since_s) == (pytest.approx(90.0), 40.0)
    assert "last report was at step 4" in found[0].sentence
    assert found[1].sentence == "is still in section save"
    assert watch.seen == {}
    watch.ended(0)
    assert set(watch.pending(pages)) == {1}
