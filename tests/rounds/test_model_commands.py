"""Commands, growth and replacement in the model: whatever fails meanwhile, each command is answered once."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from rounds.sim.schedule import ASKS, Fault, play
from rounds.sim.world import Setup, World

from nvrx_async.etcd.types import KeyValue
from nvrx_async.job.codec import decode
from nvrx_async.job.records import Command, CommandPhase, Grow, Policy, Verb

FAULTS = (
    "crash",
    "freeze",
    "cut",
    "lose_answers",
    "crash_before",
    "freeze_before",
    "signal",
    "exit",
    "flaky",
    "leave",
)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    agents = draw(st.integers(2, 4))
    least = draw(st.integers(1, 2))
    policy = Policy(
        grow=draw(st.sampled_from(Grow)),
        grow_pause_s=draw(st.sampled_from([0.0, 3.0])),
        spares=1,
        culprit_limit=draw(st.sampled_from([0, 1, 2])),
    )
    return Setup(
        agents=agents,
        slots=1,
        asks=draw(st.booleans()),
        work_s=draw(st.sampled_from([8.0, 20.0])),
        late_s=tuple(draw(st.sampled_from([0.0, 0.5, 6.0, 12.0])) for _ in range(agents)),
    ).with_spec(min_nodes=least, max_nodes=draw(st.integers(least, agents)), policy=policy)


@st.composite
def schedules(draw: st.DrawFn) -> list[Fault]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        what = ASKS + draw(st.sampled_from(Verb)).value
        found.append(Fault(draw(st.integers(10, 250)) / 10, what, draw(st.integers(0, 3)), 0.0))
    for _ in range(draw(st.integers(0, 3))):
        what, arg = draw(st.sampled_from(FAULTS)), float(draw(st.integers(1, 10)))
        found.append(Fault(draw(st.integers(0, 250)) / 10, what, draw(st.integers(0, 3)), arg))
    return sorted(found, key=lambda fault: fault.at_s)


def answers(world: World) -> dict[str, list[Command]]:
    """What was written under each command's key."""
    found = defaultdict(list)
    for change in world.store.log:
        if isinstance(change, KeyValue) and "/control/" in change.key:
            found[change.key].append(decode(Command, change.key, change.value))
    return found


def search(setup: Setup, seed: int, faults: list[Fault]) -> None:
    world = play(setup, seed, faults)
    for key, told in answers(world).items():
        assert [one.phase is CommandPhase.ASKED for one in told] == [True, False][: len(told)], (key, told)
        event(f"{told[-1].verb.value} {told[-1].phase.value}")


@given(setups(), st.integers(0, 2**16), schedules())
@settings(max_examples=60)
@pytest.mark.timeout(120)
def test_whatever_fails_a_command_is_answered_once_and_no_rule_is_broken(
    setup: Setup, seed: int, faults: list[Fault]
) -> None:
    search(setup, seed, faults)


@pytest.mark.soak
@pytest.mark.timeout(0)
@given(setups(), st.integers(0, 2**16), schedules())
def test_many_more_commands_are_answered_once(setup: Setup, seed: int, faults: list[Fault]) -> None:
    search(setup, seed, faults)


@pytest.mark.parametrize("asks", [True, False], ids=["agreed", "by_signal"])
@pytest.mark.parametrize("verb", Verb)
def test_a_command_in_a_quiet_job_is_answered(verb: Verb, *, asks: bool) -> None:
    setup = Setup(agents=3, slots=1, work_s=20.0, asks=asks).with_spec(min_nodes=1, max_nodes=2)
    world = play(setup, 1, [Fault(8.0, ASKS + verb.value, 0, 0.0)])
    ((_, answered),) = answers(world).values()
    assert answered.phase is not CommandPhase.ASKED
    codes = {agent.exit_code for agent in world.agents.values()}
    assert codes == ({143} if verb is Verb.STOP else {0})
    ended = any("/interrupt/" in change.key for change in world.store.log)
    assert ended is (verb in (Verb.STOP, Verb.RESTART, Verb.DRAIN) and not asks)
