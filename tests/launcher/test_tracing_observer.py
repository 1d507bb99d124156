"""One life of an agent as spans: what is heard of a round when the next one has begun still belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvrx_async.etcd.types import Put, Txn
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Assignment, Node, Phase, Process, Round, Seat
from nvrx_async.job.trace import opened
from nvrx_async.rounds.effects import Registered, RoundRunning
from nvrx_async.rounds.events import RanksGone
from nvrx_launcher.tracing_observer import Observer
from nvrx_launcher.tracing_rank_starts import RankStart
from nvrx_launcher.tracing_round import About
from nvrx_telemetry import semconv
from nvrx_telemetry.model import FinishedSpan, Value

UTC = "2026-01-31T10:00:00.250Z"
KEYS = AttemptKeys("job", 0)


class Heard:
    """What the observer told."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def emit(self, span: FinishedSpan) -> None:
        self.spans.append(span)

    def flush(self) -> None:
        pass

    def measure(self, name: str, value: float, attributes: Mapping[str, Value]) -> None:
        pass

    def gauges(self, name: str, measured: Iterable[tuple[float, Mapping[str, Value]]]) -> None:
        pass

    def of(self, name: str) -> list[FinishedSpan]:
        return [span for span in self.spans if span.name == name]


def round_of(number: int) -> Round:
    return Round(number, Phase.FORMING, UTC, extra=opened("job", 0, number, UTC, "a-1"))


def one_rank_ran() -> tuple[Observer, Heard]:
    """Round 0 is over on this node, and round 1 is open."""
    heard = Heard()
    observer = Observer(About("job", 0, "a", "a-1", 3, None, 0), heard, 0.0)
    node = Node("a", "a-1", "host", "10.0.0.1", 1, Process("boot", "1", 2, 3), UTC)
    observer.notice(Registered(node, 0), 0.5)
    observer.opened(round_of(0), 1.0)
    seated = Assignment(0, Seat("a", "a-1", "host", 0, 0, 1), 1, 1, "10.0.0.1", 29500)
    observer.notice(RoundRunning(0, 1, 1, seated, "all came"), 2.0)
    observer.released(0, 3.0)
    observer.prepared(0, 3.1, {0: {semconv.DL_RANK: 0}})
    observer.rank_began(0, 0, 3.2)
    observer.observe(RanksGone(0, ()), 5.0)
    observer.opened(round_of(1), 6.0)
    return observer, heard


def test_a_report_whose_answer_comes_after_the_next_round_is_told() -> None:
    observer, heard = one_rank_ran()
    report = Txn((), (Put(KEYS.fault(0, "a"), b"{}"),))
    for at_s in (6.1, 6.2):
        observer.committed(report, at_s)
    (span,) = heard.of(semconv.REPORT)
    assert (span.start_ns, span.end_ns) == (5_000_000_000, 6_100_000_000)
    assert span.attributes[semconv.RDZV_ROUND] == 0
    assert observer.round is not None
    assert observer.round.at.joined_s == 6.2, "the last one before the world is sealed"


def test_a_join_whose_answer_comes_after_the_world_is_sealed_is_told_once() -> None:
    observer, heard = one_rank_ran()
    observer.notice(RoundRunning(1, 1, 1, None, "all came"), 7.0)
    assert [span for span in heard.of(semconv.HEALTH_CHECK) if span.attributes[semconv.RDZV_ROUND] == 1] == []
    for at_s in (7.1, 7.2):
        observer.committed(Txn((), (Put(KEYS.fault(0, "a"), b"{}"),)), at_s)
        observer.committed(Txn((), (Put(KEYS.join(1, "a"), b"{}"),)), at_s)
    (span,) = heard.of(semconv.HEALTH_CHECK)
    (above,) = [one for one in heard.of(semconv.RENDEZVOUS) if one.attributes[semconv.RDZV_ROUND] == 1]
    assert (span.parent_id, span.start_ns, span.end_ns) == (above.span_id, 6_000_000_000, 7_100_000_000)


def test_starts_of_ranks_that_are_known_after_the_next_round_are_told() -> None:
    observer, heard = one_rank_ran()
    observer.ranks_are(0, {0: RankStart(4.0, 4.5)})
    observer.ranks_are(0, {0: RankStart(4.0, 4.5)})
    observer.ranks_are(7, {0: RankStart(4.0, 4.5)})
    (run_start,) = heard.of(semconv.RUN_START)
    for name in (semconv.RANK_STARTUP, semconv.RANK_SETUP):
        (span,) = heard.of(name)
        assert (span.trace_id, span.parent_id) == (run_start.trace_id, run_start.span_id)


def test_a_run_whose_end_is_not_seen_is_told_at_the_end_of_this_life() -> None:
    observer, heard = one_rank_ran()
    seated = Assignment(1, Seat("a", "a-1", "host", 0, 0, 1), 1, 1, "10.0.0.1", 29500)
    observer.notice(RoundRunning(1, 1, 1, seated, "all came"), 7.0)
    observer.released(1, 7.1)
    observer.prepared(1, 7.2, {})
    observer.rank_began(1, 0, 7.3)
    observer.finish(9.0)
    first, second = heard.of(semconv.RUN)
    assert (first.attributes[semconv.RDZV_ROUND], second.attributes[semconv.RDZV_ROUND]) == (0, 1)
    assert (second.start_ns, second.end_ns) == (7_300_000_000, 9_000_000_000)
