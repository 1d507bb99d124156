"""Schedules of faults: data that Hypothesis draws and shrinks, and a person can copy into a directed test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rounds.sim.agent import Life
from rounds.sim.world import Setup, World

from nvrx_async.job.records import Verb
from nvrx_async.rounds.events import LeaveRequested

RECOVERY_S = 30.0
"""Longest time for which a schedule keeps an agent, a host or the store away after its last fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at_s` this befalls agent `slot`. `arg`: seconds, or for the crash and freeze points the effect's number."""

    at_s: float
    what: str
    slot: int = 0
    arg: float = 0.0


KINDS = (
    "crash",
    "crash_before",
    "freeze_before",
    "crash_keeper",
    "freeze",
    "cut",
    "lose_answers",
    "flaky",
    "cut_watches",
    "replay",
    "lag",
    "outage",
    "exit",
    "signal",
    "exception",
    "early",
    "leave",
    "unkillable",
    "slow_kills",
    "freeze_host",
    "crash_all",
    "cut_all",
    "cut_peers",
    "isolate",
    "revoke_all",
)

ASKS = "ask "
"""A fault that is none: a person asks for something, `ask drain`."""


def apply(world: World, fault: Fault) -> None:
    """Let the fault happen now."""
    slot, arg = fault.slot % world.setup.agents, fault.arg
    doing: dict[str, Callable[[], object]] = {
        "crash": lambda: _crash(world, slot, arg),
        "crash_before": lambda: world.fail_points.update({(slot, int(arg)): ("crash", 1.0 + arg % 7)}),
        "freeze_before": lambda: world.fail_points.update({(slot, int(arg)): ("freeze", 3.0 + arg % 17)}),
        "crash_keeper": world.agents[slot].crash_keeper,
        "freeze": lambda: world.freeze(slot, arg),
        "cut": lambda: world.cut(slot, arg),
        "lose_answers": lambda: world.lose_answers(slot, arg),
        "flaky": lambda: world.flaky(slot, arg),
        "cut_watches": lambda: _with_life(world, slot, Life.cut_watches),
        "replay": lambda: _with_life(world, slot, lambda life: life.replay(20)),
        "lag": lambda: world.lag_watches(slot, min(arg, 6.0), 10.0),
        "outage": lambda: world.outage(arg),
        "exit": lambda: world.end_rank(slot, "exit"),
        "signal": lambda: world.end_rank(slot, "signal"),
        "exception": lambda: world.end_rank(slot, "exception"),
        "early": lambda: world.end_rank(slot, "early"),
        "leave": lambda: world.leave(slot, LeaveRequested(15)),
        "unkillable": lambda: world.make_unkillable(slot),
        "slow_kills": lambda: setattr(world, "slow_kills", True),
        "freeze_host": lambda: world.freeze_host(slot, arg),
        "crash_all": lambda: _crash_all(world, arg),
        "cut_all": lambda: [world.cut(each, arg) for each in range(world.setup.agents)],
        "cut_peers": lambda: world.cut_peers(slot, arg),
        "isolate": lambda: (world.cut(slot, arg), world.cut_peers(slot, arg)),
        "revoke_all": world.revoke_all,
    }
    if fault.what.startswith(ASKS):
        world.ask(Verb(fault.what.removeprefix(ASKS)), slot)
        return
    doing[fault.what]()


def _with_life(world: World, slot: int, do: Callable[[Life], None]) -> None:
    life = world.agents[slot].life
    if life is not None:
        do(life)


def _crash(world: World, slot: int, back_s: float) -> None:
    """The agent dies; a new process of it starts `back_s` later."""
    world.crash(slot)
    world.timeline.after(back_s, lambda: world.launch(slot))


def _crash_all(world: World, back_s: float) -> None:
    """The scheduler kills the whole job and starts it again."""
    if any(host.frozen for host in world.hosts):
        return  # a scheduler does not start a job again while a node of it does not answer
    for slot in range(world.setup.agents):
        world.crash(slot)
        world.timeline.after(back_s, lambda slot=slot: world.launch(slot, "launch.1"))  # type: ignore[misc]


def play(setup: Setup, seed: int, faults: list[Fault]) -> World:
    """Run a job under these faults until all is quiet, and check it.

    Raises:
        Violation: with the story.
    """
    world = World(setup, seed)
    for fault in faults:
        world.timeline.at(fault.at_s, lambda fault=fault: _if_launched(world, fault))  # type: ignore[misc]
    quiet_s = max((fault.at_s for fault in faults), default=0.0) + RECOVERY_S
    world.run(quiet_s)
    world.slow_kills = False
    world.fail_points.clear()
    restart_dead(world)
    if not world.run_until(world.over, bound_s(setup)):
        world.checks.at_end()
    world.run(setup.spec.lease_ttl_s + 3.0)
    world.checks.at_end()
    return world


def _if_launched(world: World, fault: Fault) -> None:
    if fault.slot % world.setup.agents in world.agents:
        apply(world, fault)


def restart_dead(world: World) -> None:
    """Agents that crashed for good come back once, so that as many live as the job needs."""
    for slot, agent in list(world.agents.items()):
        if not agent.alive and agent.exit_code is None:
            world.launch(slot, agent.launch_id)


def bound_s(setup: Setup) -> float:
    """Within this model time after the last fault every job must be over."""
    spec = setup.spec
    fenced_s = spec.lease_ttl_s + spec.outage_limit_s + 3.0 + spec.kill_time_s
    rounds = spec.max_restarts + 6
    return 2 * fenced_s + spec.join_timeout_s + rounds * (2 * setup.work_s + spec.last_call_s)
