"""Ranks past T, in the model: a common outage leaves training alone, a partition stops the cut-off side first.

As in `test_holes`, each rule is also taken away, so that the schedule is known to need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from rounds.sim.agent import Agent
from rounds.sim.checks import Violation
from rounds.sim.directed import KEYS, RULE, leader, ranks, running, slot_of, to_the_end
from rounds.sim.world import Setup, World
from rounds_kit import identity

from nvrx_async.job.records import JobSpec, Node, Seat
from nvrx_async.rounds import fencing, promises, running_round, tolerance
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import AskPeers, Effect
from nvrx_async.rounds.events import Deposed, Elected, Now
from nvrx_async.rounds.fencing import Judge
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.promises import Book, Contact, Question
from nvrx_async.rounds.running_round import RunningRound

LONG = Setup(agents=3, work_s=60.0).with_spec(max_nodes=3, outage_limit_s=30.0)
WITH_SPARE = Setup(agents=3, late_s=(0.0, 0.1, 1.0), work_s=60.0).with_spec(outage_limit_s=30.0)


def rounds_of(world: World) -> int:
    return len([number for attempt, number in world.checks.sealed if attempt == 0])


@pytest.mark.parametrize("how", ["outage", "cut_all"])
@pytest.mark.parametrize("seed", range(4))
def test_no_rank_notices_a_common_outage(how: str, seed: int) -> None:
    """etcd itself is away and gives every lease its TTL again; or the way to it is, and all leases end there."""
    world = running(LONG, seed)
    world.run(3.0)
    if how == "outage":
        world.outage(20.0)
    else:
        for slot in range(3):
            world.cut(slot, 20.0)
    to_the_end(world)
    assert rounds_of(world) == 1
    assert world.checks.outcomes[0].success


def test_ranks_stop_at_the_limit() -> None:
    world = running(LONG, 1)
    world.run(3.0)
    world.outage(50.0)
    world.run(28.0)
    assert all(rank.alive for rank in world.checks.ranks)
    world.run(8.0)
    assert not any(rank.alive for rank in world.checks.ranks)
    to_the_end(world)
    assert world.checks.outcomes[0].success


@pytest.mark.parametrize("from_peers", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_is_cut_off_alone_stops_before_another_takes_its_place(
    *, from_peers: bool, seed: int
) -> None:
    """The checks fail the test if a rank of the next round starts while one of the last lives."""
    world = running(WITH_SPARE, seed)
    world.run(3.0)
    victim = slot_of(world, 1)
    world.cut(victim, 40.0)
    if from_peers:
        world.cut_peers(victim, 40.0)
    assert world.run_until(lambda: (0, 1) in world.checks.sealed, 25)
    to_the_end(world)
    assert world.checks.outcomes[0].success


@RULE
def test_a_promise_keeps_the_coordinator_from_giving_ranks_away(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A is cut from etcd alone and asks before T: its ranks live until T + 3 s, past the end of its lease."""
    if not rule:
        monkeypatch.setattr(Book, "outstanding", {})
    broken = 0
    for seed in range(6):
        world = running(WITH_SPARE, seed)
        world.run(3.0)
        world.slow_kills = True
        victim = next(slot for slot in (slot_of(world, 0), slot_of(world, 1)) if slot != leader(world))
        for rank in ranks(world, 0):
            rank.deaf = True
        world.cut(victim, 40.0)
        try:
            to_the_end(world)
        except Violation:
            broken += 1
    assert (broken == 0) is rule


@RULE
def test_a_restarted_agent_outwaits_what_its_predecessor_promised(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promises C, dies, and A's successor leads at once: it knows of no promise, and has C's seat to give away.

    C asked before its T, so its ranks outlive its lease. Who leads anew waits longer than any promise lasts.
    """
    if not rule:
        monkeypatch.setattr(fencing, "missing_wait_s", lambda *_, **__: 0.0)
    broken = 0
    for seed in range(4):
        world = running(Setup(agents=2, work_s=60.0).with_spec(min_nodes=1, outage_limit_s=30.0), seed)
        world.run(3.0)
        world.slow_kills = True
        for rank in ranks(world, 0):
            rank.deaf = True
        cut, other = slot_of(world, 1), slot_of(world, 0)

        def restart(world: World = world, other: int = other) -> None:
            world.crash(other)
            world.timeline.after(0.1, lambda: world.launch(other))

        def hook(agent: Agent, effect: Effect, cut: int = cut, restart: Callable[[], None] = restart) -> None:
            if agent.slot == cut and isinstance(effect, AskPeers) and effect.question.before_t:
                agent.world.timeline.after(0.5, restart)
                agent.world.on_effect.clear()

        world.on_effect.append(hook)
        world.cut(cut, 40.0)
        try:
            to_the_end(world)
        except Violation:
            broken += 1
    assert (broken == 0) is rule


@RULE
def test_h12_a_lease_that_is_formally_good_refuses_nobody_before_t(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A common outage; at A's T, B's last renewal is younger. "My lease is good" would kill A."""
    if not rule:
        monkeypatch.setattr(tolerance, "shares_outage", lambda *_: None)
    ended = 0
    for seed in range(4):
        world = running(LONG, seed)
        world.run(2.0 + 0.4 * seed)
        world.outage(20.0)
        to_the_end(world)
        ended += rounds_of(world) > 1
    assert (ended == 0) is rule


@RULE
def test_h12_who_asks_before_t_is_refused_by_nobody(*, rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a short TTL there is no time to ask again: whoever is asked first has no failed renewal to tell of."""
    if not rule:

        def no_early(question: Question, contact: Contact, now_s: float, ttl_s: float) -> str | None:
            return promises.shares_outage(replace(question, before_t=False), contact, now_s, ttl_s)

        monkeypatch.setattr(tolerance, "shares_outage", no_early)
    ended = 0
    for seed in range(4):
        world = running(replace(LONG, slow_network=0.0).with_spec(lease_ttl_s=3), seed)
        world.run(2.0 + 0.4 * seed)
        world.outage(20.0)
        to_the_end(world)
        ended += rounds_of(world) > 1
    assert (ended == 0) is rule


@RULE
def test_who_reaches_etcd_again_says_yes_to_those_who_do_not_yet(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way to etcd heals for one node after another: to reach it says nothing of the others for a TTL."""
    if not rule:

        def no_gap(question: Question, contact: Contact, now_s: float, ttl_s: float) -> str | None:
            return promises.shares_outage(question, replace(contact, gap_ended_s=None), now_s, ttl_s)

        monkeypatch.setattr(tolerance, "shares_outage", no_gap)
    ended = 0
    for seed in range(4):
        world = running(LONG, seed)
        world.run(2.0 + 0.4 * seed)
        for slot in range(3):
            world.cut(slot, 10.0 + 2.0 * slot)
        to_the_end(world)
        ended += rounds_of(world) > 1
    assert (ended == 0) is rule


@RULE
def test_h13_a_spare_that_died_before_the_outage_is_not_asked(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silence would end the tolerance of all."""
    if not rule:
        monkeypatch.setattr(RunningRound, "_strike", lambda *_: None)
    world = running(WITH_SPARE, 3)
    world.run(3.0)
    world.end_rank(slot_of(world, 0), "exit")  # a spare that waits when a world is sealed is recorded in it
    assert world.run_until(lambda: len(ranks(world, 1)) == 4, 30)
    (recorded,) = world.checks.sealed[0, 1].spares
    world.run(3.0)
    world.crash(next(slot for slot, agent in world.agents.items() if agent.life_is(recorded.incarnation)))
    world.run(15.0)
    world.outage(15.0)
    world.run(16.0)
    assert all(rank.alive for rank in ranks(world, 1)) is rule


@RULE
def test_h15_leases_that_are_all_revoked_early_cost_nothing(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a stuck old leader of an older etcd does: T of all is still ahead, and nobody may think otherwise.

    The rule: a coordinator whose own session is younger than the seal gives the others time to come back.
    """
    if not rule:
        given_up_at = running_round.given_up_at

        def at_once(seat: Seat, nodes: dict[str, Node], since_s: float, judge: Judge, spec: JobSpec) -> float:
            return given_up_at(seat, nodes, since_s, replace(judge, older_than_seal=True), spec)

        monkeypatch.setattr(running_round, "given_up_at", at_once)
    ended = 0
    for seed in range(4):
        world = running(LONG, seed)
        world.run(3.0)
        world.revoke_all()
        to_the_end(world)
        ended += rounds_of(world) > 1
    assert (ended == 0) is rule


@RULE
def test_t_by_promises_is_for_the_round_that_was_promised(*, rule: bool) -> None:
    """The keeper keeps promises apart by round."""
    world = running(LONG, 2)
    keeper = world.agents[0].keeper
    assert keeper is not None
    keeper.extends_all = not rule
    before_s = keeper.good_until_s
    keeper.extend(0, before_s + 100.0)
    assert keeper.until_s(keeper.groups[0]) == before_s + 100.0
    assert (keeper.good_until_s == before_s) is rule


def test_a_promise_lasts_longer_than_what_is_made_of_it() -> None:
    spec, book = LONG.spec, Book()
    book.promise("a", 100.0, spec)
    assert promises.lasts_until_s(100.0) + spec.kill_time_s < book.outstanding["a"]


def test_who_was_given_up_gets_no_promise() -> None:
    book = Book()
    book.give_up(3, frozenset({"a"}))
    assert book.gave_up("a", 3)
    assert book.gave_up("a", 2)
    assert not book.gave_up("a", 4)
    assert not book.gave_up("b", 3)


def test_late_news_of_an_old_candidacy_deposes_nobody() -> None:
    """A campaign of the lease before says "elected" late, after this agent was elected on its new lease."""
    machine = Coordinator(identity(), LONG.spec, Mirror())
    now = Now(0.0, "")
    for key, revision in ((KEYS.election(0xB), 12), (KEYS.election(0xA), 4)):
        machine.observe(Elected(key, revision), now)
    machine.observe(Deposed(KEYS.election(0xA)), now)
    assert machine.decide(now).reason != "another agent leads"
