"""What passes among the machines is noted and told later; nothing is made of it here, and no bug leaves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nvrx_async.etcd.types import KeyValue, Scope
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import EndedBy, FaultKind, Interrupt, Node, Phase, Process, RankEnd, Round
from nvrx_async.job.trace import opened
from nvrx_async.rounds.effects import Registered
from nvrx_async.rounds.events import (
    Changed,
    Deposed,
    Elected,
    Event,
    KeeperLost,
    Now,
    RankEnded,
    RankHung,
    RanksGone,
    Renewed,
)
from nvrx_async.rounds.mirror import Mirror
from nvrx_launcher.tracing import Traced
from nvrx_launcher.tracing_later import Later
from nvrx_launcher.tracing_lookout import Lookout
from nvrx_launcher.tracing_observer import Observer
from nvrx_launcher.tracing_round import About, NodeRound
from nvrx_telemetry import semconv
from nvrx_telemetry.model import FinishedSpan

UTC = "2026-01-31T10:00:00.250Z"
ABOUT = About("job", 0, "a", "a-1", 3, None, 0)
KEYS = AttemptKeys("job", 2)


class Scene:
    """A lookout over a mirror that tests write to. `calls`: what it asked for, none of which is made."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failures: list[Exception] = []
        self.observer = Observer(ABOUT, None, 0.0)  # type: ignore[arg-type]  # it is never called
        self.mirror = Mirror()
        self.mirror.open(frozenset({Scope(KEYS.base, prefix=True)}))
        self._revision = 0
        self.lookout = Lookout(
            ABOUT, self.mirror, self.observer, self._later, self._hung_since, self.failures.append
        )

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        assert call.__self__ is self.observer  # type: ignore[attr-defined]  # a method
        self.calls.append((call.__name__, arguments))

    def _hung_since(self, number: int, rank: int) -> float:
        return 100.0 * number + rank

    def registered(self) -> None:
        node = Node("a-2", "a-1", "host", "10.0.0.1", 2, Process("boot", "1", 2, 3), UTC)
        self.lookout.notice(Registered(node, KEYS.attempt))

    def put(self, key: str, record: object) -> None:
        self._revision += 1
        held = KeyValue(key, encode(record), self._revision, self._revision, 1)
        self.mirror.observe(Changed(held))

    def decided(self, at_s: float) -> list[tuple[str, tuple[Any, ...]]]:
        """What a decision asked for."""
        self.calls.clear()
        decision = self.lookout.decide(Now(at_s, UTC))
        assert (decision.effects, decision.wake_at_s) == ((), None)
        return list(self.calls)


def round_of(number: int) -> Round:
    return Round(number, Phase.FORMING, UTC, extra=opened("job", KEYS.attempt, number, UTC, "a-1"))


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.registered()
    return made


def test_it_follows_nothing_and_wants_nothing() -> None:
    scene = Scene()
    assert scene.lookout.scopes() == frozenset()
    assert scene.decided(1.0) == [], "an agent that is not registered has no round"


def test_a_round_is_told_once_with_the_moment_it_was_seen_at(scene: Scene) -> None:
    scene.put(KEYS.round, round_of(0))
    assert scene.decided(5.0) == [("opened", (round_of(0), 5.0))]
    scene.put(KEYS.round, replace(round_of(0), phase=Phase.RUNNING))
    assert scene.decided(6.0) == []
    scene.put(KEYS.round, round_of(1))
    assert scene.decided(7.0) == [("opened", (round_of(1), 7.0))]


def test_an_interrupt_is_told_once_in_each_round(scene: Scene) -> None:
    for number in (0, 1):
        said = Interrupt("b", FaultKind.EXIT_CODE, "b", "rank 1 exited with 1", UTC)
        scene.put(KEYS.round, round_of(number))
        scene.decided(1.0)
        scene.put(KEYS.interrupt(number), said)
        assert scene.decided(2.0) == [("interrupted", (number, said, 2.0))]
        assert scene.decided(3.0) == []


def test_an_interrupt_and_the_next_round_that_are_seen_at_once_are_told_in_their_order(scene: Scene) -> None:
    """As by an agent that was behind; the next round may be over as well."""
    scene.put(KEYS.round, round_of(0))
    scene.decided(1.0)
    said = [Interrupt("b", FaultKind.EXIT_CODE, "b", f"rank {rank} exited with 1", UTC) for rank in (0, 1)]
    scene.put(KEYS.interrupt(0), said[0])
    scene.put(KEYS.round, round_of(1))
    scene.put(KEYS.interrupt(1), said[1])
    assert scene.decided(2.0) == [
        ("interrupted", (0, said[0], 2.0)),
        ("opened", (round_of(1), 2.0)),
        ("interrupted", (1, said[1], 2.0)),
    ]


def test_events_that_tell_something_are_passed_on_and_others_are_not(scene: Scene) -> None:
    ended = RankEnded(0, RankEnd(1, 1, 77, FaultKind.EXIT_CODE, EndedBy.ITSELF, exit_code=1))
    told: list[Event] = [ended, RanksGone(0, ()), KeeperLost(1), Elected("key", 3), Deposed("key")]
    silent: list[Event] = [Renewed(1.0, 2.0), Changed(KeyValue("/x", b"", 1, 1, 1))]
    scene.calls.clear()
    for event in (*told, *silent):
        scene.lookout.observe(event, Now(4.0, UTC))
    assert scene.calls == [("observe", (event, 4.0, None)) for event in told]


def test_a_hang_is_told_with_the_last_sign_of_life_as_it_is_known_then(scene: Scene) -> None:
    scene.calls.clear()
    hung = RankHung(3, 2, "has not said anything")
    scene.lookout.observe(hung, Now(4.0, UTC))
    assert scene.calls == [("observe", (hung, 4.0, 302.0))]


def test_lines_and_ranks_are_given_the_names_that_the_spans_will_have(scene: Scene) -> None:
    assert scene.lookout.tag == ""
    tags, made = set(), list[FinishedSpan]()
    for number in (0, 1):
        scene.put(KEYS.round, round_of(number))
        scene.decided(1.0)
        spans = NodeRound(ABOUT, round_of(number), 1.0, made.append)
        line, run = spans.named(semconv.CYCLE_START), spans.named(semconv.RUN_START)
        assert scene.lookout.tag == f" trace_id={line.trace_id:032x} span_id={line.span_id:016x}"
        assert scene.lookout.above_ranks(number) == run
        assert scene.lookout.above_ranks(number + 1) is None
        tags.add(scene.lookout.tag)
    assert len(tags) == 2


def test_a_bug_of_the_telemetry_ends_the_telemetry_and_nothing_else(scene: Scene) -> None:
    scene.mirror.observe(Changed(KeyValue(KEYS.round, b"{", 9, 9, 1)))
    assert scene.decided(1.0) == []
    assert len(scene.failures) == 1
    warned: list[str] = []
    traced = Traced.__new__(Traced)
    traced._broken, traced._warn, traced._later = False, warned.append, Later(warned.append)  # type: ignore[arg-type]
    traced._fails(ZeroDivisionError("a bug"))
    traced._fails(ZeroDivisionError("the next"))
    assert len(warned) == 1
    assert "ZeroDivisionError: a bug" in warned[0]
    traced._tell(warned.append, "told")
    traced._later._make()
    assert len(warned) == 1, "nothing more is told of rounds"
