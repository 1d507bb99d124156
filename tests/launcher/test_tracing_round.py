"""One round as spans of one node: what is told of spares, lost nodes, long runs and ranks that say nothing."""

from __future__ import annotations

import pytest

from nvrx_async.job.records import Assignment, FaultKind, Interrupt, Mark, Phase, Round, Seat
from nvrx_async.job.trace import opened, root_of
from nvrx_launcher.tracing_rank_starts import RankStart
from nvrx_launcher.tracing_round import LONGEST_SLICE_S, NS, About, NodeRound, utc_ns
from nvrx_telemetry import semconv
from nvrx_telemetry.model import FinishedSpan
from nvrx_telemetry.traceparent import parsed, spelled

UTC = "2026-01-31T10:00:00.250Z"
EPOCH_NS = (utc_ns(UTC) or 0) - 100 * NS
"""This host was up for 100 s at that moment."""


def about(node_id: str = "a") -> About:
    return About("job", 0, node_id, f"{node_id}-1", 3, None, EPOCH_NS)


def round_of(number: int, opener: str = "a-1") -> Round:
    return Round(number, Phase.FORMING, UTC, extra=opened("job", 0, number, UTC, opener))


def node_round(
    number: int = 0, opener: str = "a-1", node_id: str = "a"
) -> tuple[NodeRound, list[FinishedSpan]]:
    spans: list[FinishedSpan] = []
    made = NodeRound(about(node_id), round_of(number, opener), 101.0, spans.append)
    made.opens(100.5, ())
    return made, spans


def seated(number: int = 0) -> Assignment:
    return Assignment(number, Seat("a", "a-1", "host", 0, 0, 2), 4, 2, "10.0.0.1", 29500)


def names(spans: list[FinishedSpan]) -> list[str]:
    return [span.name.removeprefix("nv.nvrx.ftl.") for span in spans]


def last(spans: list[FinishedSpan], name: str) -> FinishedSpan:
    return [span for span in spans if span.name == name][-1]


def test_a_traceparent_is_read_as_it_is_spelled() -> None:
    root = root_of(round_of(0))
    assert root is not None
    assert parsed(spelled(root)) == root
    for wrong in ("", None, 7, "00-0-0-01", f"00-{'0' * 32}-{'1' * 16}-01", f"ff-{'1' * 32}-{'1' * 16}-01"):
        assert parsed(wrong) is None


def test_a_round_opened_again_has_the_same_trace_and_another_one_has_not() -> None:
    assert opened("job", 0, 1, UTC, "a-1") == opened("job", 0, 1, UTC, "a-1")
    others = {
        opened(*changed)["traceparent"]
        for changed in (
            ("job", 0, 1, UTC, "a-1"),
            ("jop", 0, 1, UTC, "a-1"),
            ("job", 1, 1, UTC, "a-1"),
            ("job", 0, 2, UTC, "a-1"),
            ("job", 0, 1, "2026-01-31T10:00:00.251Z", "a-1"),
            ("job", 0, 1, UTC, "b-1"),
        )
    }
    assert len(others) == 6


def test_only_the_opener_tells_of_the_root_and_at_the_moment_of_the_opening() -> None:
    made, spans = node_round()
    assert names(spans) == ["round_start", "cycle_start", "await_round"]
    root = spans[0]
    assert (root.parent_id, root.start_ns, root.end_ns) == (None, utc_ns(UTC), utc_ns(UTC))
    assert (root.trace_id, root.span_id) == root_of(round_of(0))
    other, told = node_round(opener="b-1")
    assert names(told) == ["cycle_start", "await_round"]
    assert told[0].parent_id == other.root.span_id
    assert made.named(semconv.CYCLE_START) != other.named(semconv.CYCLE_START)


def test_a_round_of_another_version_has_one_trace_too() -> None:
    bare = Round(3, Phase.FORMING, UTC)
    roots = {NodeRound(about(node), bare, 1.0, lambda _: None).root for node in "abc"}
    assert len(roots) == 1


def test_a_spare_is_told_as_that() -> None:
    made, spans = node_round()
    made.runs(102.0, None, 2, 4)
    made.closes(110.0, "standby")
    cycle = last(spans, semconv.CYCLE)
    assert cycle.attributes[semconv.MEMBERSHIP] == "standby"
    assert cycle.attributes[semconv.CYCLE_OUTCOME] == "standby"
    assert semconv.GROUP_RANK not in cycle.attributes
    assert cycle.end_ns - cycle.start_ns == 9 * NS


def test_a_long_run_is_told_of_while_it_lasts() -> None:
    made, spans = node_round()
    made.runs(102.0, seated(), 2, 4)
    made.released(103.0)
    made.rank_began(104.0, 0)
    for second in range(104, 104 + 7200):
        made.goes_on(float(second), second)
    slices = [span for span in spans if span.name == semconv.RUN_SLICE]
    lengths = [round((span.end_ns - span.start_ns) / NS) for span in slices]
    assert lengths[:5] == [60, 120, 240, 480, LONGEST_SLICE_S]
    assert set(lengths[4:]) == {LONGEST_SLICE_S}
    assert len({span.span_id for span in slices}) == len(slices)
    assert {span.parent_id for span in slices} == {made.named(semconv.RUN_START).span_id}
    assert slices[-1].attributes[semconv.STEP] == slices[-1].end_ns // NS - EPOCH_NS // NS


def test_a_lost_nodes_fault_is_told_by_who_saw_it() -> None:
    made, spans = node_round()
    made.runs(102.0, seated(), 2, 4)
    made.released(103.0)
    made.rank_began(104.0, 0)
    made.told(120.0, Interrupt("a", FaultKind.NODE_LOST, "b", "node b is lost", UTC))
    mark = last(spans, semconv.FAULT)
    assert (mark.trace_id, mark.span_id) == made.mark_of("b")
    assert mark.error == "node b is lost"
    made.gone(121.0)
    assert names(spans).count("run") == 1


def test_a_lost_node_that_comes_back_has_a_mark_of_its_own() -> None:
    """One id would be two spans; all nodes that were told mean that of who told them."""
    lost = Interrupt("a", FaultKind.NODE_LOST, "b", "node b is lost", UTC)
    teller, told = node_round()
    teller.told(120.0, lost)
    frozen, own = node_round(node_id="b")
    frozen.faulted(121.0, "fenced", "rank 2 was killed", 2, None)
    frozen.told(121.1, lost)
    other, _ = node_round(node_id="c")
    other.told(120.1, lost)
    by_teller, by_itself = last(told, semconv.FAULT), last(own, semconv.FAULT)
    assert by_teller.trace_id == by_itself.trace_id
    assert by_teller.span_id != by_itself.span_id
    for one in (teller, other):
        assert one.mark_of("b").span_id == by_teller.span_id


def test_ranks_of_which_not_all_came_up_are_below_a_span_that_is_told() -> None:
    made, spans = node_round()
    made.runs(102.0, seated(), 2, 4)
    made.released(103.0)
    made.prepared(103.1, {0: {}, 1: {}})
    made.rank_began(104.0, 0)
    made.ranks_are({0: RankStart(105.0)})
    made.closes(106.0, "failed")
    made.closes(107.0, "failed")
    (startup,) = [span for span in spans if span.name == semconv.RANK_STARTUP]
    (above,) = [span for span in spans if span.name == semconv.RUN_START]
    assert startup.parent_id == above.span_id
    assert semconv.RUN not in {span.name for span in spans}


def test_an_interrupt_of_a_clock_that_is_ahead_takes_no_time() -> None:
    made, spans = node_round()
    ahead = "2026-01-31T10:05:00.000Z"
    made.told(120.0, Interrupt("b", FaultKind.SIGNAL, "b", "rank 3 died", ahead))
    notification = last(spans, semconv.NOTIFICATION)
    assert notification.start_ns == notification.end_ns


@pytest.mark.parametrize("connected", [True, False])
def test_a_restart_ends_with_the_first_step_or_with_what_is_known(*, connected: bool) -> None:
    spans: list[FinishedSpan] = []
    ended = NodeRound(about(), round_of(0), 101.0, spans.append)
    ended.runs(102.0, seated(), 2, 4)
    ended.released(103.0)
    ended.rank_began(104.0, 0)
    ended.faulted(150.0, "signal", "rank 1 died", 1, 149.9)
    ended.stopping(150.1)
    ended.gone(150.5)
    ended.reported(150.6)
    following = NodeRound(about(), round_of(1), 150.7, spans.append)
    following.runs(150.8, seated(1), 2, 4)
    following.released(150.9)
    assert following.restarted(ended, {}, last=True) is None, "no process exists yet"
    following.rank_began(151.0, 0)
    marks = {Mark.HELLO: 152.0, Mark.FIRST_STEP: 153.0} if connected else {}
    assert following.restarted(ended, {}, last=False) is None, "ranks may still come"
    took_s = following.restarted(ended, marks, last=not connected)
    assert took_s == pytest.approx(3.1 if connected else 1.1)
    assert following.restarted(ended, marks, last=True) is None, "told once"
    steps = [span for span in spans if span.name.startswith(f"{semconv.RESTART}.")]
    assert sum(span.end_ns - span.start_ns for span in steps) == pytest.approx((took_s or 0) * NS, abs=1000)
