"""What directed tests say to a model: until when to run, whom to freeze before what, and what must be left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from rounds.sim.agent import Agent
from rounds.sim.checks import RUN_ID
from rounds.sim.keeper import Rank
from rounds.sim.world import Setup, World

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.rounds.effects import Commit, Effect

RULE = pytest.mark.parametrize("rule", [True, False], ids=["with_the_rule", "without"])
KEYS = AttemptKeys(RUN_ID, 0)


def running(setup: Setup, seed: int, number: int = 0) -> World:
    """A job in which every rank of the round runs."""
    world = World(setup, seed)
    size = setup.slots * setup.spec.max_nodes
    assert world.run_until(lambda: len(ranks(world, number)) == size, 60)
    return world


def ranks(world: World, number: int) -> list[Rank]:
    return [rank for rank in world.checks.ranks if rank.assignment.round == number]


def slot_of(world: World, group_rank: int, number: int = 0) -> int:
    """Which agent has this seat."""
    seat = world.checks.sealed[0, number].seats[group_rank]
    return next(slot for slot, agent in world.agents.items() if agent.life_is(seat.incarnation))


def leader(world: World) -> int:
    """Which agent's coordinator sealed the running round."""
    newest = max(world.checks.sealed.values(), key=lambda sealed: sealed.number)
    return next(
        slot for slot, agent in world.agents.items() if newest.token.startswith(f"{agent.incarnation}-")
    )


def to_the_end(world: World, within_s: float = 400.0) -> World:
    world.run_until(world.over, within_s)
    world.run(world.setup.spec.lease_ttl_s + 3.0)
    world.checks.at_end()
    return world


def freeze_at(
    world: World,
    slot: int,
    wanted: Callable[[Effect], bool],
    for_s: float,
    then: Callable[[], None] = lambda: None,
) -> Callable[[], bool]:
    """Freeze an agent right before its first effect of this kind; returns whether that has happened."""
    frozen: list[float] = []

    def hook(agent: Agent, effect: Effect) -> Literal["freeze"] | None:
        if frozen or agent.slot != slot or not wanted(effect):
            return None
        frozen.append(world.timeline.now_s)
        world.tell(agent, f"FREEZES before {type(effect).__name__} for {for_s:g} s")
        world.timeline.after(for_s, agent.thaw)
        then()
        return "freeze"

    world.on_effect.append(hook)
    return lambda: bool(frozen)


def commits(tag: str) -> Callable[[Effect], bool]:
    return lambda effect: isinstance(effect, Commit) and effect.tag == tag
