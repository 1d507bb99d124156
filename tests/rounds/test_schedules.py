"""Schedules that broke the machines once, found with the model (`sim/`), and hand-overs before each commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from rounds.sim.agent import Agent
from rounds.sim.checks import Violation
from rounds.sim.directed import KEYS, RULE, commits, ranks, running, slot_of, to_the_end
from rounds.sim.schedule import Fault, play
from rounds.sim.world import Setup, World

from nvrx_async.etcd.types import Compare, Operation, Txn
from nvrx_async.rounds import fencing
from nvrx_async.rounds.effects import Commit, Effect
from nvrx_async.rounds.office import Office


def test_an_outage_beyond_the_ttl_after_which_etcd_still_holds_the_old_leases() -> None:
    """The session gives its lease up after a TTL of silence; etcd comes back and gives each lease a new TTL.

    The next life of the same process finds its node id held by its own earlier life, whose process lives.
    """
    for seed in range(5):
        world = play(Setup(fixed_ids=seed % 2 == 0), seed, [Fault(8.0, "outage", 0, 8.0)])
        assert [agent.exit_code for agent in world.everyone] == [0, 0]


def test_an_unkillable_rank_frees_the_seal() -> None:
    """SIGKILL does not end a rank for 10 s: its node reports unfit, joins no more, and is not waited for."""
    world = running(Setup(agents=3, work_s=40.0), seed=1)
    victim = slot_of(world, 1)
    world.make_unkillable(victim)
    for rank in ranks(world, 0):
        rank.deaf = True  # SIGTERM ends none of them
    world.end_rank(slot_of(world, 0), "exit")
    assert world.run_until(lambda: (0, 1) in world.checks.sealed, 60)
    assert world.agents[victim].node_id not in {seat.node_id for seat in world.checks.sealed[0, 1].seats}
    assert world.run_until(lambda: 0 in world.checks.outcomes, 200)
    assert world.checks.outcomes[0].success


def test_a_process_whose_lease_lapsed_at_the_end_adopts_the_outcome() -> None:
    """B is cut off while the job ends without it; no launch id tells that B belongs to the job that ended.

    B's next life finds an outcome. It must not begin the job again.
    """
    for seed in range(4):
        setup = Setup(agents=2, launch_id=None, work_s=12.0).with_spec(min_nodes=1, max_nodes=1)
        world = running(setup, seed)
        assert world.run_until(lambda w=world: all(agent.attempt == 0 for agent in w.agents.values()), 5)  # type: ignore[misc]
        world.cut(1 - slot_of(world, 0), 25.0)
        to_the_end(world)
        assert world.checks.current_attempt() == 0
        assert [agent.exit_code for agent in world.everyone] == [0, 0]


def test_a_process_that_is_left_alone_goes_on_with_its_own_attempt() -> None:
    """All leases lapse; no launch id tells that those who come back belong to the attempt without a verdict.

    They register in it again, instead of waiting until it may be succeeded by another one.
    """
    for seed in range(4):
        world = play(Setup(launch_id=None), seed, [Fault(8.0, "cut", slot, 25.0) for slot in (0, 1)])
        assert world.checks.current_attempt() == 0
        assert world.checks.outcomes[0].success


def test_the_move_to_another_attempt_is_compared_with_what_its_mover_sees_late() -> None:
    """Another launch has waited long enough, and its watches lag. A comes back, seals a first world and starts.

    The mover does not see that yet: the move itself compares that the attempt has no node. (No world was sealed
    before A was cut off, else A would have to wait as long as the mover.)
    """
    setup = Setup(agents=2, late_s=(0.0, 1e6), work_s=60.0).with_spec(min_nodes=1)
    world = World(setup, seed=18)
    assert world.run_until(lambda: KEYS.node("n0") in world.store.keys, 5)
    world.launch(1, "other.0")
    wait_s = setup.spec.lease_ttl_s + fencing.SETTLE_S  # nothing was sealed
    world.cut(0, 6.5 + wait_s - 6.0)
    assert world.run_until(lambda: KEYS.node("n0") not in world.store.keys, 10)
    world.run(1.0)
    world.lag_watches(1, 12.0, 60.0)
    world.run(20.0)
    assert world.checks.current_attempt() == 0
    assert any(rank.alive for rank in world.checks.ranks)


@pytest.mark.parametrize("tag", ["seal", "end", "outcome"])
@pytest.mark.parametrize("for_s", [1.0, 20.0])
def test_a_coordinator_that_freezes_before_it_commits_changes_nothing_afterwards(
    tag: str, for_s: float
) -> None:
    """It wakes before or after its lease lapsed and others went on: its commit is refused, or is still right."""
    for seed in range(3):
        world = World(Setup(agents=3, work_s=12.0), seed)
        frozen: list[int] = []

        def hook(agent: Agent, effect: Effect, frozen=frozen, world=world) -> Literal["freeze"] | None:  # type: ignore[no-untyped-def]
            if frozen or not commits(tag)(effect):
                return None
            frozen.append(agent.slot)
            world.timeline.after(for_s, agent.thaw)
            return "freeze"

        world.on_effect.append(hook)
        world.timeline.at(8.0, lambda w=world: w.end_rank(slot_of(w, 1), "exit"))  # type: ignore[misc]
        to_the_end(world)
        assert frozen
        assert world.checks.outcomes[0].success


@RULE
def test_a_late_commit_is_refused_when_the_round_has_moved_on(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to an `end` is lost and the request held back; the coordinator commits anew, then it arrives."""
    if not rule:
        txn = Office._txn

        def without_round(self: Office, *when: Compare, then: tuple[Operation, ...]) -> Txn:
            made = txn(self, *when, then=then)
            return replace(
                made, when=tuple(one for one in made.when if getattr(one, "key", "") != KEYS.round)
            )

        monkeypatch.setattr(Office, "_txn", without_round)
    held: list[Txn] = []
    world = running(Setup(work_s=15.0), seed=20)

    def arrive() -> None:
        world.store.commit(held[0])

    def hook(agent: Agent, effect: Effect) -> None:
        if isinstance(effect, Commit) and effect.tag == "end" and not held:
            held.extend(effect.txns)
            world.timeline.after(2.0, arrive)

    world.on_effect.append(hook)
    world.end_rank(0, "exit")
    if rule:
        to_the_end(world)
        assert held
    else:
        with pytest.raises(Violation, match=r"written twice|round went"):
            to_the_end(world)
