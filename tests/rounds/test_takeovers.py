"""Models in which all agents of an attempt die without a verdict, and others start under the same run id."""

from __future__ import annotations

import pytest
from rounds.sim.checks import RUN_ID, Violation
from rounds.sim.directed import RULE, running, to_the_end
from rounds.sim.world import Setup, World

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.rounds import entry
from nvrx_async.rounds.fencing import takeover_wait_s

SEEDS = pytest.mark.parametrize("seed", range(5))
LONG = 100.0
TWO = Setup(launch_id=None, work_s=30.0).with_spec(outage_limit_s=LONG)
ONE = Setup(agents=1, launch_id=None, work_s=30.0).with_spec(min_nodes=1, max_nodes=1, outage_limit_s=LONG)


def all_lost(setup: Setup, seed: int) -> World:
    """Every agent was killed and every lease has ended."""
    world = running(setup, seed)
    for slot in range(setup.agents):
        world.crash(slot)
    nodes = AttemptKeys(RUN_ID, 0).nodes
    assert world.run_until(lambda: not any(nodes.covers(key) for key in world.store.keys), 30)
    return world


def trains_again(world: World, within_s: float, attempt: int = 1) -> bool:
    return world.run_until(lambda: (attempt, 0) in world.checks.sealed, within_s)


@SEEDS
def test_the_only_agent_starts_again_and_waits_for_nothing(seed: int) -> None:
    world = all_lost(ONE, seed)
    world.launch(0)
    assert trains_again(world, 3.0), world.story[-20:]
    assert to_the_end(world).checks.outcomes[1].success


@SEEDS
def test_all_start_again_one_after_the_other(seed: int) -> None:
    world = all_lost(TWO, seed)
    world.launch(0)
    world.run(5.0)
    assert world.checks.current_attempt() == 0, "its peer is not proven dead"
    world.launch(1)
    assert trains_again(world, 5.0), world.story[-20:]
    assert to_the_end(world).checks.outcomes[1].success


@SEEDS
def test_all_start_again_while_one_lease_still_holds(seed: int) -> None:
    """Who finds a node registers beside it, and must not be waited for by it: its predecessor is dead."""
    world = running(TWO, seed)
    world.crash(0)
    world.run(3.0)
    world.crash(1)
    assert world.run_until(lambda: AttemptKeys(RUN_ID, 0).node("n0") not in world.store.keys, 30)
    world.launch(0)
    world.launch(1)
    ran = len(world.checks.sealed)
    assert world.run_until(lambda: len(world.checks.sealed) > ran, 20.0), world.story[-20:]
    to_the_end(world)


@SEEDS
def test_one_that_stays_away_is_waited_out(seed: int) -> None:
    world = all_lost(TWO.with_spec(min_nodes=1), seed)
    world.launch(0)
    wait_s = takeover_wait_s(world.setup.spec)
    world.run(wait_s - 2.0)
    assert world.checks.current_attempt() == 0
    assert trains_again(world, 10.0)
    to_the_end(world)


@RULE
def test_an_attempt_whose_members_run_on_without_leases_is_not_taken_over(
    *, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All keys are gone and all ranks train on, by promises: only their deaths, or time, free the job."""
    if not rule:
        monkeypatch.setattr(entry, "_left_wait_s", lambda *_, **__: 0.0)

    def play() -> None:
        setup = Setup(agents=3, launch_id=None, work_s=60.0, late_s=(0, 0, 1000.0))
        world = running(setup.with_spec(outage_limit_s=20.0), 3)
        world.cut(0, 12.0)
        world.cut(1, 12.0)
        world.run(9.0)
        world.launch(2)
        to_the_end(world)

    if rule:
        play()
        return
    with pytest.raises(Violation, match="attempt 1 began while ranks of the one before live"):
        play()
