"""The two machines, searched for violations under schedules of faults (see `sim/`).

An example is a job and a list of faults; both shrink. `Violation` shows the story that led to it. A failing
example can be copied into `test_holes.py` as it is printed.
"""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from rounds.sim.checks import Violation
from rounds.sim.schedule import KINDS, Fault, play
from rounds.sim.world import SPEC, Setup, World

LONG_WAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 25.0)
POINTS = ("crash_before", "freeze_before")


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    agents = draw(st.integers(1, 4))
    min_nodes = draw(st.integers(1, agents))
    together = draw(st.booleans())
    return Setup(
        agents=agents,
        launch_id=draw(st.sampled_from(["launch.0", None])),
        slots=draw(st.integers(1, 2)),
        fixed_ids=draw(st.booleans()),
        work_s=draw(st.sampled_from([8.0, 20.0])),
        slow_network=draw(st.sampled_from([0.03, 0.3, 0.8])),
        late_s=() if together else tuple(draw(st.sampled_from([0.0, 0.5, 5.0, 15.0])) for _ in range(agents)),
    ).with_spec(
        min_nodes=min_nodes,
        max_nodes=draw(st.integers(min_nodes, agents)),
        max_restarts=draw(st.sampled_from([0, 1, 3])),
        last_call_s=SPEC.last_call_s,
        outage_limit_s=draw(st.sampled_from([0.0, 4.0, 20.0])),
    )


@st.composite
def schedules(draw: st.DrawFn) -> list[Fault]:
    """Faults close together, since it takes several at once to break something."""
    start_s = draw(st.integers(0, 140)) / 10
    faults = []
    for _ in range(draw(st.integers(0, 7))):
        what = draw(st.sampled_from(KINDS))
        if what in POINTS:
            at_s, arg = draw(st.sampled_from([0.0, start_s])), float(draw(st.integers(1, 25)))
        else:
            at_s, arg = start_s + draw(st.integers(0, 80)) / 10, draw(st.sampled_from(LONG_WAYS))
        faults.append(Fault(at_s, what, draw(st.integers(0, 3)), arg))
    return sorted(faults, key=lambda fault: fault.at_s)


def search(setup: Setup, seed: int, faults: list[Fault]) -> None:
    world = play(setup, seed, faults)
    event(f"{len(world.checks.sealed)} worlds")
    for outcome in world.checks.outcomes.values():
        event(f"outcome {outcome.exit_code}")


@given(setups(), st.integers(0, 2**16), schedules())
@settings(max_examples=250)
@pytest.mark.timeout(120)
def test_no_schedule_of_faults_breaks_a_rule(setup: Setup, seed: int, faults: list[Fault]) -> None:
    search(setup, seed, faults)


@pytest.mark.soak
@pytest.mark.timeout(0)
@given(setups(), st.integers(0, 2**16), schedules())
def test_many_more_schedules_break_no_rule(setup: Setup, seed: int, faults: list[Fault]) -> None:
    search(setup, seed, faults)


@pytest.mark.parametrize("what", POINTS)
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("number", range(1, 15))
def test_a_crash_or_freeze_before_any_effect_is_survived(what: str, slot: int, number: int) -> None:
    """Each effect of an undisturbed job of two agents, and of the round that a failed rank makes necessary."""
    faults = [Fault(0.0, what, slot, float(number)), Fault(8.0, "exit", 1)]
    world = play(Setup(), seed=number, faults=faults)
    assert world.checks.outcomes[world.checks.current_attempt()].success


def test_an_undisturbed_job_succeeds_in_one_round() -> None:
    world = play(Setup(agents=3).with_spec(min_nodes=3, max_nodes=3), seed=1, faults=[])
    assert {number for _, number in world.checks.sealed} == {0}
    assert [agent.exit_code for agent in world.everyone] == [0, 0, 0]


@pytest.mark.parametrize("how", ["exit", "signal", "exception"])
@pytest.mark.parametrize("seed", range(5))
def test_a_failed_rank_costs_one_round_and_is_named(how: str, seed: int) -> None:
    world = play(Setup(), seed, [Fault(10.0, how, 1)])
    assert [number for _, number in world.checks.sealed] == [0, 1]
    root = world.checks.ends[0, 0].root
    assert root.node_id == "n1"
    assert root.culprit
    assert [agent.exit_code for agent in world.everyone] == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_a_dead_agent_is_replaced_by_a_spare(seed: int) -> None:
    setup = Setup(agents=3, late_s=(0.0, 0.1, 1.0))
    world = World(setup, seed)
    assert world.run_until(lambda: (0, 0) in world.checks.sealed, 10)
    world.run(3.0)
    member = world.checks.sealed[0, 0].seats[1]
    world.crash(next(slot for slot, agent in world.agents.items() if agent.node_id == member.node_id))
    assert world.run_until(world.over, 120)
    nodes = {seat.node_id: seat.group_rank for seat in world.checks.sealed[0, 1].seats}
    assert member.node_id not in nodes
    assert world.checks.outcomes[0].success


@pytest.mark.parametrize("seed", range(5))
def test_an_outage_shorter_than_the_deadline_disturbs_nothing(seed: int) -> None:
    world = play(Setup(work_s=25.0), seed, [Fault(8.0, "outage", 0, 1.0)])
    assert len(world.checks.sealed) == 1
    assert world.checks.outcomes[0].success


@pytest.mark.parametrize("seed", range(5))
def test_without_tolerance_ranks_are_dead_by_the_deadline_in_a_long_outage(seed: int) -> None:
    world = World(Setup(work_s=60.0).with_spec(outage_limit_s=0.0), seed)
    assert world.run_until(lambda: bool(world.checks.ranks), 20)
    world.run(3.0)
    world.outage(20.0)
    world.run(world.setup.spec.lease_ttl_s + 0.1)
    assert not any(rank.alive for rank in world.checks.ranks)
    assert world.run_until(world.over, 300)
    assert world.checks.outcomes[0].success


def test_nothing_is_written_while_a_round_runs() -> None:
    world = World(Setup(agents=3, work_s=100.0).with_spec(max_nodes=2), seed=4)
    assert world.run_until(lambda: len(world.checks.ranks) == 4, 20)
    world.run(5.0)
    revision, before = world.store.revision, world.timeline.now_s
    world.run(60.0)
    assert world.timeline.now_s >= before + 60.0
    assert world.store.revision == revision


@pytest.mark.parametrize("seed", range(3))
def test_the_model_is_deterministic(seed: int) -> None:
    faults = [Fault(6.0, "crash", 1, 2.0), Fault(7.0, "flaky", 0, 8.0)]
    assert play(Setup(), seed, faults).story == play(Setup(), seed, faults).story


def test_the_model_sees_ranks_that_outlive_their_deadline() -> None:
    """With a keeper that ignores T, a frozen agent's ranks still run when the next round starts."""
    faults = [Fault(6.0, "freeze", 1, 25.0)]
    with pytest.raises(Violation, match="lives"):
        for seed in range(10):  # whether it shows depends on who leads
            play(Setup(agents=3, work_s=40.0, past_deadline_s=60.0), seed, faults)
