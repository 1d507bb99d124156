"""Ranks that wait for one in a section: for how long that excuses them, and what excuses nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hang_kit import MAIN, busy, page, section, still, thread
from hypothesis import given
from hypothesis import strategies as st

from nvrx_async.hang.monitor import ASK_AHEAD_S, HangMonitor, Look, Seen
from nvrx_async.hang.patience import OpenSection, from_wire, to_wire
from nvrx_async.hang.policy import HangPolicy
from nvrx_async.ranklink.page import NameView, PageView

TIMEOUT_S = 100.0
POLICY = HangPolicy(timeout_s=TIMEOUT_S, startup_s=200.0)
Rank = Callable[[float], Seen]
Elsewhere = Callable[[float], Iterable[OpenSection]]


def nothing(now: float) -> tuple[OpenSection, ...]:
    return ()


def run(
    until_s: float,
    *ranks: Rank,
    elsewhere: Elsewhere = nothing,
    known: dict[str, float] | None = None,
    policy: HangPolicy = POLICY,
) -> tuple[list[tuple[float, int, str]], list[tuple[float, str, tuple[int, ...]]]]:
    """Look as the driver does; who was found hung or suspect, when, and who was excused, when and by whom."""
    watch = HangMonitor(policy, range(len(ranks)), 0.0, known=known or {}, expected=True, node="n0")
    found, waits, now_s, looks = [], [], 0.0, 0
    while now_s <= until_s:
        seen = {i: rank(now_s) for i, rank in enumerate(ranks)}
        look = watch.look(now_s, now_s, seen, None)
        told = [look]
        if look.ask:
            look = watch.look(now_s, now_s, seen, tuple(elsewhere(now_s)))
            told.append(look)
            assert not look.ask
        found += [(now_s, one.local_rank, one.sentence) for each in told for one in each.findings]
        waits += [(now_s, one.section.name, one.local_ranks) for one in look.waits]
        before_s, now_s, looks = now_s, max(look.next_s, now_s + 1e-6), looks + 1
        while before_s < now_s:  # the lease is renewed all the time
            watch.alive(before_s)
            before_s += 2.0
        assert looks < 4000, "it polls"
    return found, waits


def waits_since(at_s: float, back_s: float = float("inf")) -> Rank:
    """Outside of sections: reported until `at_s`, and again from `back_s` on."""
    return lambda now: busy(page(now, thread(now if now >= back_s else min(now, at_s), 4)))


def steps_since(at_s: float) -> Rank:
    """In a step that was begun at `at_s`, as `Rank.steps` tells it."""

    def rank(now: float) -> Seen:
        return busy(page(now, thread(at_s, 4, opened=1), sections=(section("step", now, now - at_s),)))

    return lambda now: rank(now) if now >= at_s else busy(page(now, thread(now, 3)))


def in_section(
    name: str, from_s: float, to_s: float, limit_s: float | None = None, *, nested: bool = False
) -> Rank:
    """In a section for a time, before and after that it gets on; `nested`: in a step that waits meanwhile."""

    def inside(now: float) -> PageView:
        outer = (replace_section(section("step", now, 1.0, runs=False)),) if nested else ()
        inner = section(name, now, now - from_s, limit_s=limit_s)
        return page(now, thread(from_s, 4, opened=1 + nested), sections=(*outer, inner))

    return lambda now: busy(inside(now) if from_s <= now < to_s else page(now, thread(now, 4)))


def replace_section(one):
    return one._replace(ident=MAIN)


FOREVER = float("inf")


def test_waiting_for_a_rank_in_a_section_is_not_hanging():
    found, waits = run(900, in_section("save", 40, 800, 1000), waits_since(41, back_s=800.01))
    assert found == []
    assert waits[0] == (pytest.approx(141.0), "save", (1,))


def test_who_overstays_its_section_is_found_at_its_own_deadline_and_nobody_else():
    found, _ = run(345, in_section("save", 40, FOREVER, 300), waits_since(41), steps_since(42))
    assert found == [(pytest.approx(340.0), 0, "is still in section save")]


def test_a_section_without_a_limit_has_the_timeout():
    found, waits = run(160, in_section("save", 50, FOREVER, nested=True), steps_since(41))
    assert found == [(pytest.approx(150.0), 0, "is still in section save")]
    assert [one[0] for one in waits] == [pytest.approx(141.0)]


def test_a_section_excuses_for_the_limit_of_its_name():
    policy = replace(POLICY, section_limits_s={"save": 300.0})
    found, _ = run(345, in_section("save", 40, FOREVER), waits_since(41), policy=policy)
    assert found == [(pytest.approx(340.0), 0, "is still in section save")]


def test_all_who_wait_on_a_node_are_told_together():
    _, waits = run(
        150, in_section("save", 40, FOREVER, 900), waits_since(41), waits_since(43), steps_since(47)
    )
    assert waits[0] == (pytest.approx(141.0), "save", (1, 2, 3))


def test_after_the_section_patience_begins_anew():
    """The one that saved is through and those that waited do not come: as late as if they had just begun to wait."""
    ((at_s, rank, _),), waits = run(1000, in_section("save", 40, 200, 1000), waits_since(41))
    assert rank == 1
    last_s = waits[-1][0]
    assert 200 - TIMEOUT_S / 4 <= last_s < 200
    assert at_s == pytest.approx(last_s + TIMEOUT_S)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("a section that is over", in_section("save", 40, 60, 900)),
        ("a section past its deadline", in_section("save", 40, FOREVER, 50)),
        ("a step", steps_since(45)),
        ("a thread aside", lambda now: busy(aside(now))),
        ("an outer section, and the inner one late", lambda now: busy(late_inside(now))),
        ("a rank that is done", lambda now: busy(page(now, thread(50, 4), done_s=50.0))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_excuses_nobody(name, other):
    found, waits = run(142, other, waits_since(41))
    assert (pytest.approx(141.0), 1) in [one[:2] for one in found]
    assert waits == []


def aside(now: float) -> PageView:
    """A thread beside the one that trains keeps a section open."""
    upload = section("upload", now, now, limit_s=9000)._replace(ident=MAIN + 1)
    return page(now, thread(now, 4), sections=(upload,))


def late_inside(now: float) -> PageView:
    outer, inner = section("epoch", now, 2.0, runs=False, limit_s=9000), section("save", now, now - 5)
    return page(now, thread(5.0, 4, opened=2), sections=(outer, inner))


def test_who_is_in_a_named_section_is_judged_by_it_alone():
    found, _ = run(142, in_section("save", 40, FOREVER, 900), in_section("evaluate", 41, FOREVER))
    assert [one[:2] for one in found] == [(pytest.approx(141.0), 1)]


def test_a_learned_limit_is_excused_too():
    slow = still(page(0.0))

    def waiting(now: float) -> Seen:
        return replace_page(slow, page(now, thread(min(now, 30.0), 4)))

    found, waits = run(70, in_section("save", 29, FOREVER, 900), waiting, known={"reports": 35.0})
    assert found == []
    assert waits[0][0] == pytest.approx(65.0)


def replace_page(seen: Seen, view: PageView) -> Seen:
    return Seen(view, replace(seen.sample, at_s=view.at_s))


def test_a_stopped_rank_waits_for_nobody():
    def stopped(now: float) -> Seen:
        return still(page(now, thread(min(now, 20.0), 4)), states="T" if now >= 20 else "S", output_s=now)

    found, _ = run(160, in_section("save", 19, FOREVER, 900), stopped)
    assert [one[1] for one in found] == [1]
    assert "stopped by a signal" in found[0][2]


def test_sections_of_other_nodes_count_and_are_asked_for_ahead_of_the_deadline():
    far = OpenSection(7, "n1 (host h)", "save", "save@1", 40.0, 340.0, 300.0)
    found, waits = run(330, waits_since(41), elsewhere=lambda now: [far])
    assert found == []
    assert waits[0][:2] == (pytest.approx(141.0), "save")
    found, _ = run(145, waits_since(41))
    assert [one[:2] for one in found] == [(pytest.approx(141.0), 0)], "nobody answers, nobody is excused"
    asks = [look.ask for look in looks_at(waits_since(41), 139.9, 140.0, 141.0)]
    assert asks == [False, True, True]


def test_each_agent_of_a_large_world_asks_at_another_moment():
    asks = [look.ask for look in looks_at(waits_since(41), 136.4, 136.6, 141.0, ahead_s=4.5)]
    assert asks == [False, True, True]


def looks_at(rank: Rank, *moments: float, ahead_s: float = ASK_AHEAD_S) -> list[Look]:
    watch = HangMonitor(POLICY, range(1), 0.0, known={}, expected=True, ask_ahead_s=ahead_s)
    for second in range(int(moments[0])):
        watch.alive(float(second))
    return [watch.look(now, now, {0: rank(now)}, None) for now in moments]


def test_without_an_answer_nothing_is_told():
    (look,) = looks_at(waits_since(41), 150.0)
    assert (look.findings, look.ask) == ((), True)


def test_lengths_of_time_travel_and_no_moments():
    one = OpenSection(3, "n1", "save", "save@1", 100.0, 400.0, 300.0)
    far = from_wire(to_wire(one, 150.0), 10_000.0)
    assert far == replace(one, since_s=9950.0, until_s=10_250.0)


@pytest.mark.parametrize(
    "changed",
    [{"left_s": None}, {"left_s": float("nan")}, {"rank": "3"}, {"name": 1}, {"limit_s": float("inf")}],
)
def test_what_is_no_section_is_refused(changed):
    told = to_wire(OpenSection(3, "n1", "save", "save@1", 100.0, 400.0, 300.0), 150.0)
    with pytest.raises(ValueError, match="no section"):
        from_wire({**told, **changed}, 0.0)
    with pytest.raises(ValueError, match="no section"):
        from_wire([told], 0.0)


# No hang is excused for ever -------------------------------------------------------------------------------

Part = tuple[float, str | None, float | None]
PARTS = st.lists(
    st.tuples(
        st.floats(0.5, 150),
        st.sampled_from([None, "save", "evaluate", "step"]),
        st.one_of(st.none(), st.floats(1, 400)),
    ),
    min_size=1,
    max_size=5,
)


def goes_round(parts: list[Part]) -> Rank:
    """A rank that does these parts again and again: seconds, the section or none, its limit."""
    whole_s = sum(part[0] for part in parts)

    def rank(now: float) -> Seen:
        at_s = now % whole_s
        for length_s, name, limit_s in parts:
            if at_s < length_s:
                if name is None:
                    break
                inside = section(name, now, at_s, limit_s=None if name == "step" else limit_s)
                return busy(page(now, thread(now - at_s, 4, opened=1), sections=(inside,)))
            at_s -= length_s
        return busy(page(now, thread(now, 4)))

    return rank


@given(others=st.lists(PARTS, min_size=1, max_size=3), far=st.lists(PARTS, max_size=2), in_step=st.booleans())
def test_no_hang_is_unreported_for_longer_than_the_longest_limit_of_a_section(others, far, in_step):
    stuck = steps_since(10.0) if in_step else waits_since(10.0)
    longest_s = max(
        (limit_s or TIMEOUT_S for parts in (*others, *far) for _, name, limit_s in parts if name),
        default=0.0,
    )
    there = HangMonitor(POLICY, range(len(far)), 0.0, known={}, expected=True, first_rank=8, node="n1")
    rounds = [goes_round(parts) for parts in far]

    def elsewhere(now: float) -> tuple[OpenSection, ...]:
        return there.open_sections({i: rank(now).page for i, rank in enumerate(rounds)})

    until_s = 10 + TIMEOUT_S + longest_s + 0.001
    found, _ = run(until_s, stuck, *(goes_round(parts) for parts in others), elsewhere=elsewhere)
    at_s = min((at_s for at_s, rank, _ in found if rank == 0), default=None)
    assert at_s is not None
    assert at_s >= 10 + TIMEOUT_S - 0.001


@given(
    begins=st.floats(1, 99),
    lasts=st.floats(1, 390),
    arrives=st.floats(0, 90),
    comes_back=st.floats(0, 0.9),
    near=st.booleans(),
)
def test_no_false_alarm_while_a_section_is_within_its_limit(begins, lasts, arrives, comes_back, near):
    ends = begins + lasts
    saves, waits = in_section("save", begins, ends, 400), waits_since(min(arrives, ends), ends + comes_back)
    there = HangMonitor(POLICY, range(1), 0.0, known={}, expected=True, first_rank=8, node="n1")

    def elsewhere(now: float) -> tuple[OpenSection, ...]:
        return () if near else there.open_sections({0: saves(now).page})

    late = min(arrives, ends) + TIMEOUT_S
    if begins >= late - 1.0:  # nobody could know why it waits
        return
    found, _ = run(ends + comes_back + 50, waits, *([saves] if near else []), elsewhere=elsewhere)
    assert found == []


def test_kinds_of_names_are_learned_as_before():
    names = (NameView("save", 9, 1.0, 2.0),)
    watch = HangMonitor(POLICY, range(1), 0.0, known={}, expected=True)
    watch.look(1.0, 1.0, {0: busy(page(1.0, thread(1.0, 4), names=names))})
    assert watch.seen == {"section:save": 2.0}
