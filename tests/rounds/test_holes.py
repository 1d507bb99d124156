"""Holes that a first version of the round protocol had, each as a directed schedule (`sim/`).

Most tests come in two forms: with the rule that closes the hole, nothing breaks; without it (taken away for the
test) the hole opens, so that the schedule is known to reach it. Rules for ranks
past T that need no promise are tried with keepers that kill that much too late (`past_deadline_s`); those about
promises, H12, H13 and H15 among them, are in `test_outages.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from rounds.sim.agent import Agent, Life
from rounds.sim.checks import Violation
from rounds.sim.directed import KEYS, RULE, commits, freeze_at, leader, ranks, running, slot_of, to_the_end
from rounds.sim.schedule import Fault, play
from rounds.sim.world import SPEC, Setup, World, real_machines

from nvrx_async.etcd.types import CreatedAt, Put, Txn
from nvrx_async.job.codec import encode
from nvrx_async.job.records import FaultKind, Interrupt, Node
from nvrx_async.rounds import conclusions, entry, fencing, forming_round, missing, running_round, seal
from nvrx_async.rounds import world as last_world
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Effect, StartRanks
from nvrx_async.rounds.events import Proof, Proven
from nvrx_async.rounds.holding import Holding
from nvrx_async.rounds.office import Office


@RULE
def test_h1_a_member_that_stops_slowly_is_waited_for(*, rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A's rank exits and A reports; B, alive and registered, still kills its ranks when the last call is over.

    Without the rule A and a spare get the next world while B's ranks live.
    """
    world = running(Setup(agents=3, grace_s=8.0, work_s=60.0), seed=1)
    world.slow_kills = True
    if not rule:
        for module in (conclusions, running_round, missing, last_world):
            monkeypatch.setattr(module, "is_present", lambda *_: False)
        monkeypatch.setattr(seal, "unclear", lambda *_: None)
        monkeypatch.setattr(seal, "_will_join", lambda *_: False)
    fail_group_rank(world, 0)
    if rule:
        to_the_end(world)
        assert world.checks.outcomes[0].success
    else:
        with pytest.raises(Violation, match=r"starts while .* lives"):
            to_the_end(world)


def fail_group_rank(world: World, group_rank: int) -> None:
    """A rank fails; no other notices by itself, and every other one takes its whole grace to stop."""
    for rank in ranks(world, 0):
        rank.deaf = True
    world.end_rank(slot_of(world, group_rank), "exit")


def test_h2_a_restarted_single_agent_leads_again() -> None:
    """(deadlock) The only agent dies. Its restart is not recorded: if it might not lead, nobody ever would."""
    for seed in range(4):
        setup = Setup(agents=1).with_spec(min_nodes=1, max_nodes=1)
        world = play(setup, seed, [Fault(8.0, "crash", 0, 1.0)])
        assert world.checks.outcomes[0].success


def test_h2_agents_that_all_registered_anew_lead_again() -> None:
    """(deadlock) An outage ends every lease: no recorded incarnation is left, and the job still goes on."""
    for seed in range(4):
        world = play(Setup(agents=3).with_spec(max_nodes=3), seed, [Fault(8.0, "outage", 0, 25.0)])
        assert world.checks.outcomes[0].success


@RULE
def test_h2_a_newcomer_does_not_lead_a_cut_off_world_to_its_double(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(split) All members are cut off, their ranks run past T; a newcomer leads and was never asked by them.

    It must wait as long as ranks may run past T. Without the rule it seals at once with a second newcomer.
    """
    if not rule:
        monkeypatch.setattr(
            Coordinator, "_judge", lambda *_: fencing.Judge(recorded=True, older_than_seal=True)
        )
    setup = Setup(agents=4, late_s=(0.0, 0.1, 9.0, 9.0), work_s=60.0, past_deadline_s=SPEC.outage_limit_s)

    def cut_off(seed: int) -> World:
        world = running(setup, seed=seed)
        for slot in (0, 1):
            world.timeline.at(12.0, lambda slot=slot: world.cut(slot, 40.0))  # type: ignore[misc]
        return to_the_end(world)

    if rule:
        assert all(cut_off(seed).checks.outcomes[0].success for seed in range(4))
    else:
        with pytest.raises(Violation, match=r"starts while .* lives"):
            for seed in range(12):  # whether it shows depends on which newcomer leads
                cut_off(seed)


@RULE
def test_h3_a_requeue_waits_until_the_old_attempt_is_surely_dead(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are cut from the store and run past T; another launch sees no node and moves `current`.

    Without the long wait two attempts train at once.
    """
    if not rule:
        monkeypatch.setattr(entry, "takeover_wait_s", lambda *_: 0.0)
    setup = Setup(agents=3, late_s=(0.0, 0.1, 1e6), work_s=60.0, past_deadline_s=SPEC.outage_limit_s)
    world = running(setup.with_spec(min_nodes=1), seed=3)
    for slot in (0, 1):
        world.freeze(slot, 60.0)  # nobody stops the ranks before their keeper does
    world.timeline.after(1.0, lambda: world.launch(2, "other.0"))
    if rule:
        assert world.run_until(lambda: world.checks.current_attempt() == 1, 60)
        assert not any(rank.alive for rank in world.checks.ranks)
    else:
        with pytest.raises(Violation, match="attempt 1 began while ranks of the one before live"):
            world.run(60)


@RULE
def test_h4_no_agent_registers_in_an_attempt_that_was_replaced(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old A gets a lease and is about to register in the moment in which another launch moves `current`."""
    if not rule:
        again = Holding._again
        monkeypatch.setattr(Holding, "_again", lambda *given: (made := again(*given)) and _unguarded(made))
    setup = Setup(agents=2, late_s=(0.0, 1e6)).with_spec(min_nodes=1, max_nodes=1)
    world = running(setup, seed=4)
    world.launch(1, "other.0")
    wait_s = fencing.takeover_wait_s(setup.spec)
    world.cut(0, 6.5 + wait_s - 3.0)
    frozen = freeze_at(world, 0, commits("again"), 4.5)
    if rule:
        assert world.run_until(frozen, 60)
        assert world.run_until(lambda: world.checks.current_attempt() == 1, 4.5)
        to_the_end(world)
        assert world.checks.current_attempt() == 1
        assert [world.agents[slot].exit_code for slot in (0, 1)] == [75, 0]
    else:
        with pytest.raises(Violation, match="was written after attempt 1 had begun"):
            world.run(60)


def _unguarded(txn: Txn) -> Txn:
    """Without the compare of `current`."""
    return replace(txn, when=txn.when[1:])


@RULE
def test_h5_an_outcome_waits_until_nothing_runs(*, rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault with no restarts left while B's agent is frozen: B's ranks live until T, and so long nobody
    may think that the job is over."""
    world = running(Setup(agents=2, work_s=60.0).with_spec(max_restarts=0), seed=5)
    led = leader(world)
    other = 1 - led
    for rank in ranks(world, 0):
        rank.deaf = True
    world.freeze(other, 60.0)
    world.end_rank(led, "exit")
    assert world.run_until(lambda: KEYS.interrupt(0) in world.store.keys, 5)
    if not rule:
        for module in (conclusions, running_round, missing, last_world):
            monkeypatch.setattr(module, "is_present", lambda *_: False)
        monkeypatch.setattr(conclusions, "unclear", lambda *_: None)
        life = world.agents[led].life
        assert life is not None
        life.machines[1]._missing_for = ()  # it looks again who is missing
    if rule:
        to_the_end(world)
        assert not world.checks.outcomes[0].success
    else:
        with pytest.raises(Violation, match="has its outcome while"):
            to_the_end(world)


@RULE
def test_h5_success_is_compared_with_no_interrupt(*, rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is about to write success when the round is interrupted."""
    if not rule:
        txn = Office._txn
        monkeypatch.setattr(Office, "_txn", lambda self, *_, then: txn(self, then=then))
    world = running(Setup(), seed=6)
    interrupt = Interrupt("n0", FaultKind.NODE_LOST, "n0", "by hand", "")
    write = Put(KEYS.interrupt(0), encode(interrupt))

    def cut_in() -> None:
        assert world.store.commit(Txn((CreatedAt(write.key, 0),), (write,))).succeeded

    frozen = freeze_at(world, leader(world), commits("outcome"), 0.5, then=cut_in)
    if rule:
        assert world.run_until(frozen, 60)
        world.run(1.0)
        assert 0 not in world.checks.outcomes
    else:
        with pytest.raises(Violation, match="which was interrupted"):
            world.run(60)


def test_h6_a_node_id_taken_over_is_lost_for_its_old_holder() -> None:
    """A is frozen past its TTL, another agent takes `nodes/A`. A wakes with a new lease that holds no such key.

    Its ranks are dead by T, which only the lease with the key could move on, and it stays out.
    """
    setup = Setup(agents=3, node_ids=("a", "b", "a"), fixed_ids=True, late_s=(0.0, 0.1, 1e6), work_s=60.0)
    world = running(setup, seed=7)
    world.freeze(0, 20.0)
    world.timeline.after(3.0, lambda: world.launch(2))
    to_the_end(world)
    assert world.checks.outcomes[0].success
    assert [world.agents[slot].exit_code for slot in range(3)] == [2, 0, 0]


@RULE
def test_h7_nothing_starts_at_or_after_t(*, rule: bool) -> None:
    """A reads its assignment and freezes before it starts anything; the others seal the next round, A wakes.

    The keeper starts nothing at or after T. Without, A's ranks of the old round meet those of the new one.
    """
    world = World(Setup(agents=3, work_s=60.0, past_deadline_s=0.0 if rule else 600.0), seed=8)
    frozen = freeze_at(world, 1, lambda effect: isinstance(effect, StartRanks), 25.0)
    assert world.run_until(frozen, 20)
    if rule:
        assert world.run_until(lambda: (0, 1) in world.checks.sealed, 40)
        to_the_end(world)
        assert not [rank for rank in ranks(world, 0) if rank.node_id == "n1"]
    else:
        with pytest.raises(Violation, match=r"starts while .* lives"):
            to_the_end(world)


def test_h7_a_start_is_for_one_keeper_only() -> None:
    """The order to start reaches a new keeper, since the one it was meant for died in between."""
    world = World(Setup(work_s=20.0), seed=9)
    crashed: list[int] = []

    def hook(agent: Agent, effect: Effect) -> None:
        if isinstance(effect, StartRanks) and not crashed:
            crashed.append(agent.slot)
            agent.crash_keeper()

    world.on_effect.append(hook)
    to_the_end(world)
    assert crashed
    assert world.checks.outcomes[0].success


@RULE
def test_h8_an_assignment_is_for_one_incarnation(*, rule: bool) -> None:
    """A is cut off and its ranks run past T; A2 with the same node id registers and finds A's assignment.

    The coordinator's watches lag, so that the round is not interrupted yet.
    """
    setup = Setup(
        agents=3,
        node_ids=("a", "b", "a"),
        fixed_ids=True,
        late_s=(0.5, 0.0, 1e6),
        work_s=60.0,
        past_deadline_s=SPEC.outage_limit_s,
    )
    world = running(setup, seed=1)
    taken = world.agents[0].incarnation
    if not rule:
        world.setup = replace(setup, machines=lambda life: real_machines(_named(life, taken)))
    assert leader(world) == 1
    world.cut(0, 60.0)
    world.lag_watches(1, 6.0, 60.0)
    assert world.run_until(lambda: KEYS.node("a") not in world.store.keys, 15)
    world.launch(2)
    if rule:
        world.run(4.0)
        assert any(agent.node_id == "a" and agent.slot == 2 for agent in world.agents.values())
        assert not [rank for rank in world.checks.ranks if rank.host is world.hosts[2]]
    else:
        with pytest.raises(Violation, match="lives twice"):
            world.run(4.0)


def _named(life: Life, incarnation: str) -> Life:
    if life.agent.slot == 2:
        life.incarnation = incarnation
    return life


@RULE
def test_h9_a_pid_that_another_container_cannot_see_is_no_dead_process(*, rule: bool) -> None:
    """Two containers of one host use the same node id. A's pid means nothing in B's namespace."""
    setup = Setup(agents=2, node_ids=("a", "a"), host_of=(0, 0), late_s=(0.0, 1e6), work_s=30.0)
    world = running(setup.with_spec(min_nodes=1, max_nodes=1), seed=11)
    holder = world.agents[0].incarnation
    if not rule:
        world.hosts[1].pid_namespace = world.hosts[0].pid_namespace
        world.hosts[1].next_pid = 5000
    world.launch(1)
    world.run(4.0)
    registered = {key for key in world.store.keys if key.startswith(KEYS.nodes.key)}
    alive = world.agents[0].life_is(holder) and KEYS.node("a") in registered
    if rule:
        assert alive
        to_the_end(world)
        assert len(world.checks.sealed) == 1
    else:
        assert not alive or world.agents[1].incarnation in str(world.store.keys[KEYS.node("a")].value)


@RULE
def test_h9_a_dead_agent_is_swept_before_its_lease_is_revoked(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agent and keeper are gone, their ranks still die: a successor sweeps first, then revokes."""
    if not rule:

        def hasty(self: World, life: Life, node: Node, answer: Callable[[Proven], None]) -> None:
            life.agent.after(0.005, lambda: answer(Proven(node.incarnation, Proof.DEAD, "no process")))

        monkeypatch.setattr(World, "prove_dead", hasty)
    world = running(Setup(agents=3, work_s=60.0).with_spec(kill_time_s=1.0), seed=12)
    victim = slot_of(world, 1)
    agent = world.agents[victim]
    world.slow_kills = True
    for rank in ranks(world, 0):
        rank.slow_s = 3.0
    agent.crash_keeper()
    world.crash(victim)
    world.launch(victim)
    for rank in ranks(world, 0):
        if rank.node_id != agent.node_id:
            rank.slow_s = 0.0
    if rule:
        to_the_end(world)
        assert world.checks.outcomes[0].success
    else:
        with pytest.raises(Violation, match=r"starts while .* lives|lives twice"):
            to_the_end(world)


@RULE
def test_h10_what_was_taken_for_absent_is_compared(*, rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A is gone and its coordinator about to seal without it, when A registers again."""
    if not rule:
        decide = seal.seal
        for module in (conclusions, forming_round):
            monkeypatch.setattr(module, "seal", lambda *given: _none_absent(decide(*given)))
    setup = Setup(agents=3, late_s=(0.0, 0.1, 0.2), work_s=30.0).with_spec(min_nodes=2, max_nodes=3)
    world = running(setup, seed=13)
    victim = next(slot for slot in (2, 1, 0) if slot != leader(world))
    world.crash(victim)
    frozen = freeze_at(
        world, leader(world), commits("seal"), 1.5, then=lambda: world.launch(victim, world.setup.launch_id)
    )
    assert world.run_until(frozen, 60)
    assert world.run_until(lambda: (0, 1) in world.checks.sealed, 60)
    sealed = world.checks.sealed[0, 1]
    present = {one.incarnation for one in sealed.recorded}
    assert (world.agents[victim].incarnation in present) is rule
    to_the_end(world)


def _none_absent(result: seal.Wait | seal.Sealed) -> seal.Wait | seal.Sealed:
    return replace(result, absent=()) if isinstance(result, seal.Sealed) else result


@RULE
def test_h11_a_late_answer_is_not_credited_to_the_next_renewal(*, rule: bool) -> None:
    """The answer to renewal 1 comes after its time-out; renewal 2 is lost. T must count from renewal 1."""
    broken = 0
    for seed in range(12 if rule else 100):
        if broken:
            break
        setup = Setup(agents=3, work_s=60.0, credits_late_answers=not rule, drift=False)
        world = running(setup.with_spec(outage_limit_s=0.0), seed)
        world.run(2.0 + 0.3 * seed)
        victim = slot_of(world, 1)
        world.slow_kills = True
        world.hosts[victim].answer_delay_s = 2.3
        renewed_s = _last_expiry(world, victim)
        assert world.run_until(lambda s=renewed_s, v=victim, w=world: _last_expiry(w, v) > s, 5)  # type: ignore[misc]
        world.hosts[victim].requests_lost = True
        world.timeline.after(30.0, lambda w=world, v=victim: _mend(w, v))  # type: ignore[misc]
        try:
            to_the_end(world)
        except Violation:
            broken += 1
    assert (broken == 0) is rule


def _last_expiry(world: World, slot: int) -> float:
    life = world.agents[slot].life
    assert life is not None
    return world.store.leases[life.lease].expires_s


def _mend(world: World, slot: int) -> None:
    world.hosts[slot].answer_delay_s = 0.0
    world.hosts[slot].requests_lost = False


def test_h14_a_late_agent_of_a_finished_launch_adopts_its_outcome() -> None:
    """An agent of the same launch that comes after the end must not begin a second attempt."""
    world = World(Setup(agents=3, late_s=(0.0, 0.1, 60.0)), seed=14)
    assert world.run_until(lambda: 2 in world.agents and world.over(), 100)
    assert world.checks.current_attempt() == 0
    assert world.agents[2].exit_code == 0


def test_h14_agents_that_never_see_the_store_again_exit() -> None:
    """The store ends for good, as an embedded one does with its agent: nobody may wait for ever."""
    world = running(Setup(agents=3, work_s=60.0), seed=19)
    world.outage(1e6)
    assert world.run_until(world.over, SPEC.lease_ttl_s + SPEC.outage_limit_s + 40.0)
    assert [agent.exit_code for agent in world.everyone] == [75, 75, 75]


def test_h14_another_launch_after_the_end_is_a_new_attempt() -> None:
    """The same run id again, by another launch: a new attempt, not the old verdict."""
    world = to_the_end(World(Setup(), seed=15))
    for slot in (0, 1):
        world.launch(slot, "other.0")
    to_the_end(world)
    assert world.checks.current_attempt() == 1
    assert world.checks.outcomes[1].success


def test_h14_an_attempt_without_a_verdict_is_succeeded_in_time() -> None:
    """All agents of a launch are gone for good, without a verdict: another launch begins after the long wait."""
    world = running(Setup(work_s=60.0), seed=16)
    for slot in (0, 1):
        world.crash(slot)
        world.launch(slot, "other.0")
    to_the_end(world)
    assert world.checks.current_attempt() == 1
    assert world.checks.outcomes[1].success


def test_h16_nothing_of_a_woken_host_takes_effect() -> None:
    """A whole host freezes past everything and wakes: no rule can fence its ranks, its store it cannot reach."""
    for seed in range(4):
        world = running(Setup(agents=3, work_s=60.0), seed)
        victim = slot_of(world, 1)
        old = world.agents[victim].incarnation
        world.freeze_host(victim, 30.0)
        world.run(29.0)
        assert (0, 1) in world.checks.sealed
        world.run(1.5)
        assert not [held for held in world.store.keys.values() if held.lease and old.encode() in held.value]
        assert not any(rank.alive for rank in ranks(world, 0))
        to_the_end(world)
        assert world.checks.outcomes[0].success
