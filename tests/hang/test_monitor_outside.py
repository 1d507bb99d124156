"""Where reports are no proof that a rank trains: after its end, and where only threads aside beat."""

from __future__ import annotations

import pytest
from hang_kit import MAIN, Rank, busy, page, run, section, side_thread, still, thread

from nvrx_async.hang.monitor import HangMonitor, Seen
from nvrx_async.hang.outside import Sample
from nvrx_async.hang.policy import Action, HangPolicy
from nvrx_async.ranklink.page import PageView

POLICY = HangPolicy(timeout_s=100.0, startup_s=200.0)
KILLS = HangPolicy(100.0, 200.0, Action.KILL_SUSPECTS)


def monitor(policy: HangPolicy = POLICY, *, expected: bool = False) -> HangMonitor:
    return HangMonitor(policy, range(1), 0.0, known={}, expected=expected)


def ends_at(done_s: float, works_until_s: float, *, states: str = "S", thread_s: float = 0.0) -> Rank:
    """Trains on a core until it is done, and works until a moment after that."""

    def rank(now: float) -> Seen:
        done = now >= done_s
        view = page(now, thread(min(now, thread_s or done_s), 5), done_s=done_s if done else None)
        return Seen(view, Sample(now, min(now, works_until_s), states))

    return rank


# After the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done_s", [10.0, 24.9, 25.1, 60.0, 99.0])
@pytest.mark.parametrize("startup_s", [100.0, 110.0, 200.0])
def test_a_rank_that_stands_still_at_its_end_is_hung_at_the_limit(done_s, startup_s):
    """To the moment, wherever the looks before it were; its last work was just before its end."""
    policy = HangPolicy(100.0, startup_s)
    ((at_s, sentence, hung),) = run(monitor(policy), 500, ends_at(done_s, done_s + 0.1))
    assert (at_s, hung) == (pytest.approx(done_s + startup_s), True)
    assert sentence == "said that training is done and does not end"


def test_work_after_the_end_is_no_hang_and_told_once():
    """A last evaluation, an upload."""
    found = run(monitor(), 5000, ends_at(10.0, 5000.0))
    assert [(at_s, hung) for at_s, _, hung in found] == [(pytest.approx(210.0), False)]
    assert "works on" in found[0][1]


def test_output_after_the_end_is_work():
    def rank(now: float) -> Seen:
        view = page(now, thread(min(now, 10.0), 5), done_s=10.0 if now >= 10 else None)
        return still(view, output_s=now - 1)

    assert [hung for _, _, hung in run(monitor(), 2000, rank)] == [False]


def test_who_stands_still_after_some_work_at_its_end_has_the_timeout_for_it():
    found = run(monitor(), 1000, ends_at(10.0, 400.0))
    (told, _, _), (hung_s, sentence, hung) = found
    assert told == pytest.approx(210.0)
    assert hung
    assert 475 <= hung_s <= 525 + 1, "a movement is known as exactly as looks lie apart"
    assert "works on" not in sentence


def test_work_that_ends_before_the_limit_moves_it_by_nothing():
    assert [at_s for at_s, _, _ in run(monitor(), 500, ends_at(10.0, 60.0))] == [pytest.approx(210.0)]


def test_who_works_past_its_limit_is_killed_where_suspects_are():
    assert [(at_s, hung) for at_s, _, hung in run(monitor(KILLS), 300, ends_at(10.0, 1e4))] == [(210.0, True)]


def test_a_stopped_rank_at_its_end_is_hung_by_that():
    def rank(now: float) -> Seen:
        view = page(now, thread(min(now, 10.0), 5), done_s=10.0 if now >= 10 else None)
        return still(view, states="T" if now >= 20 else "S", output_s=now)

    ((at_s, sentence, hung),) = run(monitor(), 160, rank)
    assert hung
    assert 120 <= at_s <= 150
    assert "stopped" in sentence


def test_a_pause_of_the_machine_at_the_end_is_no_standing_still():
    watch, rank = monitor(), ends_at(10.0, 10.1)
    for now in (0.0, 20.0, 45.0):
        for second in range(int(now) - 20, int(now)):
            watch.alive(float(second))
        watch.look(now, now, {0: rank(now)})
    assert watch.look(5000.0, 70.0, {0: rank(5000.0)}).findings == ()
    found = run(watch, 5300.0, rank, start_s=5000.001)
    assert [(at_s, hung) for at_s, _, hung in found] == [(pytest.approx(5200.0), True)]


def test_who_reports_on_after_done_is_judged_by_that():
    """`done()` was said too early: sections have their deadlines again, and the end begins with the last report."""

    def rank(now: float) -> Seen:
        inside = 20 <= now < 720
        inner = (section("evaluate", now, now - 20, limit_s=900.0),) if inside else ()
        return still(
            page(now, thread(20.0 if inside else 720.0, 5, opened=inside), sections=inner, done_s=10.0)
        )

    found = run(monitor(), 1000, rank, start_s=21.0)
    assert [(at_s, hung) for at_s, _, hung in found] == [(pytest.approx(920.0), True)]


def test_a_section_left_open_by_who_is_done_judges_nobody():
    def rank(now: float) -> Seen:
        left = section("step", now, now - 5.0)
        return busy(page(now, thread(5.0, 5, opened=1), sections=(left,), done_s=10.0))

    assert run(monitor(), 205, rank, start_s=11.0) == []


def test_beats_of_a_side_thread_after_done_do_not_move_the_end():
    found = run(monitor(), 300, lambda now: still(page(now, thread(5.0, 5), side_thread(now), done_s=10.0)))
    assert [(at_s, hung) for at_s, _, hung in found] == [(210.0, True)]


# Only threads aside report -------------------------------------------------------------------------------------


def beats_aside(now: float) -> PageView:
    """The main thread connected, another one beats."""
    return page(now, side_thread(now))


def connected_aside(now: float) -> PageView:
    """The thread that connected beats, and it is not the main one."""
    return page(now, side_thread(now, principal=True))


@pytest.mark.parametrize("view", [beats_aside, connected_aside])
def test_beats_of_threads_aside_alone_do_not_hide_that_the_process_stands_still(view):
    """V20: nothing tells that the main thread trains; so it is watched as a script that reports nothing."""
    found = run(monitor(), 300, lambda now: still(view(now)))
    assert [(at_s, hung) for at_s, _, hung in found] == [(100.0, False)]
    assert [hung for _, _, hung in run(monitor(KILLS), 150, lambda now: still(view(now)))] == [True]
    assert run(monitor(), 300, lambda now: busy(view(now))) == []


def test_where_reports_are_expected_beats_of_a_thread_aside_are_none():
    policy = HangPolicy(100.0, 200.0, startup_given=True)
    ((at_s, sentence, hung),) = run(monitor(policy), 300, lambda now: busy(beats_aside(now)))
    assert (at_s, hung) == (200.0, True)
    assert sentence == "said hello, and only threads beside the one that connected have reported"


def test_a_thread_aside_that_trains_is_judged_by_its_steps():
    """It connected, or reported steps first: then it is the one that trains."""

    def rank(now: float) -> Seen:
        return still(page(now, side_thread(min(now, 30.0), principal=True, step=4)))

    found = run(monitor(), 300, rank)
    assert [(at_s, hung) for at_s, _, hung in found] == [(130.0, True)]
    assert run(monitor(), 500, lambda now: still(page(now, side_thread(now, principal=True, step=4)))) == []


def test_a_thread_aside_that_stops_its_beats_is_late():
    found = run(monitor(), 300, lambda now: busy(page(now, side_thread(min(now, 30.0), principal=True))))
    assert [(at_s, hung) for at_s, _, hung in found] == [(130.0, True)]


def test_the_main_thread_that_connected_is_trusted():
    assert run(monitor(), 500, lambda now: still(page(now, thread(now)))) == []
    assert page(0.0).main_ident == MAIN
