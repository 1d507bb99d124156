"""Whole jobs with a collector: what a crash, a hang and a restart look like to Jaeger."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from support.otlp_receiver import Got, Receiver
from support.stage import Agent, Stage

from nvrx_telemetry import semconv

pytestmark = pytest.mark.e2e
PROGRAM = Path(__file__).parents[1] / "support" / "linked_program.py"
OPTIONS = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "2", "--warm-workers", "off")
LIMITS = ("--hang-timeout", "2", "--hang-startup-timeout", "20", "--startup-grace", "3")
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "500", "OTEL_METRIC_EXPORT_INTERVAL": "1000"}
RESTART_STEPS = [
    semconv.RESTART_TOLD,
    semconv.RESTART_STOPPED,
    semconv.RESTART_REAPED,
    semconv.RESTART_REPORTED,
    semconv.RESTART_ENDED,
    semconv.RESTART_SEALED,
    semconv.RESTART_RELEASED,
    semconv.RESTART_STARTED,
    semconv.RESTART_CONNECTED,
    semconv.RESTART_FIRST_STEP,
]


def two_agents(on: Stage, collector: Receiver, steps: int, **environment: str) -> list[Agent]:
    folder = on.folder / "steps"
    folder.mkdir()
    return [
        on.launch(
            str(PROGRAM),
            str(folder),
            str(steps),
            node=f"n{number}",
            options=(*OPTIONS, *LIMITS, "--otlp-endpoint", collector.endpoint),
            environment={**SOON, **environment},
        )
        for number in range(2)
    ]


def follows_jaegers_rules(spans: Iterable[Got]) -> dict[str, list[Got]]:
    """Ids are valid and unique, each trace has one root, nobody's parent is missing, times make sense."""
    traces: dict[str, list[Got]] = {}
    for span in spans:
        traces.setdefault(span.trace, []).append(span)
    for trace, held in traces.items():
        ids = [span.span for span in held]
        assert len(set(ids)) == len(ids), "one id, two spans"
        assert len(trace) == 32
        assert int(trace, 16)
        assert all(len(one) == 16 and int(one, 16) for one in ids)
        roots = [span.name for span in held if not span.parent]
        assert len(roots) == 1, roots
        orphans = [(span.name, span.resource) for span in held if span.parent and span.parent not in ids]
        assert not orphans
        assert all(0 < span.start_ns <= span.end_ns for span in held)
    return traces


def round_trace(traces: dict[str, list[Got]], number: int) -> list[Got]:
    (found,) = [
        held
        for held in traces.values()
        for span in held
        if span.name == semconv.ROUND_START and span.attributes[semconv.RDZV_ROUND] == number
    ]
    return found


def named(spans: list[Got], name: str, node: str | None = None) -> list[Got]:
    return [s for s in spans if s.name == name and (node is None or s.resource.get(semconv.NODE) == node)]


@pytest.fixture(params=["http", "grpc"])
def over(request: pytest.FixtureRequest) -> tuple[Receiver, dict[str, str]]:
    if request.param == "http":
        return request.getfixturevalue("collector"), {}
    return request.getfixturevalue("grpc_collector"), {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("sigkill rank=1 step=20", "signal"), ("hang rank=1 step=20", "hang")],
    ids=["crash", "hang"],
)
def test_a_restart_is_one_picture(job: Stage, over, fault: str, kind: str) -> None:
    collector, protocol = over
    agents = two_agents(job, collector, 60, NVRX_FAULTS=fault, **protocol)
    assert [agent.ends(bound_s=90) for agent in agents] == [0, 0], job.told()
    traces = follows_jaegers_rules(collector.spans)
    keeps_the_contract(collector.spans, hang=kind == "hang")
    first, second = round_trace(traces, 0), round_trace(traces, 1)

    # One trace a round over both nodes, below one root; the second leads back to the first, and to its fault.
    for held in (first, second):
        (root,) = [span for span in held if not span.parent]
        anchors = named(held, semconv.CYCLE_START)
        assert {span.resource[semconv.NODE] for span in anchors} == {"n0", "n1"}
        assert all(span.parent == root.span and span.seconds == 0 for span in (*anchors,))
    marks = {mark.span: mark for mark in named(first, semconv.FAULT)}
    (root,) = [span for span in second if not span.parent]
    links = {attributes[semconv.LINK_KIND]: (trace, span) for trace, span, attributes in root.links}
    (old_root,) = [span for span in first if not span.parent]
    assert links["previous_round"] == (old_root.trace, old_root.span)
    blamed = marks[links["fault"][1]]

    # The fault, who saw it, who was told, who decided. Two nodes may find one hang at once.
    assert len(marks) == 1 or kind == "hang"
    assert blamed.resource[semconv.NODE] == "n0" or kind == "hang"
    saw = {mark.resource[semconv.NODE] for mark in marks.values()}
    for mark in marks.values():
        assert (mark.attributes[semconv.FAULT_KIND], mark.seconds) == (kind, 0)
        assert mark.error
        (detection,) = named(first, semconv.DETECTION, mark.resource[semconv.NODE])
        assert detection.end_ns == mark.start_ns
        assert detection.seconds > 1.5 or kind != "hang", "from the last sign of life"
    if kind != "hang":
        assert {span.resource[semconv.NODE] for span in named(first, semconv.NOTIFICATION)} == {"n1"}
    (decision,) = named(first, semconv.DECISION)
    assert decision.attributes[semconv.LEVEL] == "in_job"
    assert decision.attributes[semconv.FAULT_NODE] == "n0"
    assert len(named(first, semconv.EVIDENCE)) == (2 if kind == "hang" else 0)

    each_node_is_told_of(first, second, saw)
    metrics = {metric.name for metric in collector.metrics}
    assert metrics >= {semconv.METRIC_RESTARTS, semconv.METRIC_RECOVERY, semconv.METRIC_ETCD}
    assert metrics >= {semconv.METRIC_DETECTION, semconv.METRIC_GOODPUT, semconv.METRIC_LOG_SPOOLED}
    logs = "".join(path.read_text() for path in (job.folder / "logs").rglob("agent-*.log"))
    assert {f"trace_id={held[0].trace}" in logs for held in (first, second)} == {True}
    command = [sys.executable, "-m", "nvrx_launcher.ctl", "trace", job.run_id, "--etcd", str(job.endpoint)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=job.folder).stdout
    assert f"round 1, trace {root.trace}" in told
    assert "to the first step" in told
    (of_all,) = named(first, semconv.ROUND)
    assert of_all.attributes[semconv.FAULT_KIND] == kind


def each_node_is_told_of(first: list[Got], second: list[Got], saw: set[str]) -> None:
    """What each node did, and what became of it; `saw` are those that saw a fault of their own."""
    for node in ("n0", "n1"):
        for held in (first, second):
            (anchor,) = named(held, semconv.CYCLE_START, node)
            (run_start,) = named(held, semconv.RUN_START, node)
            for name in (semconv.RENDEZVOUS, semconv.WORKER_LAUNCH, semconv.CYCLE, semconv.RUN_START):
                (span,) = named(held, name, node)
                assert span.parent == anchor.span, name
            (run,) = named(held, semconv.RUN, node)
            assert (run.parent, run.start_ns) == (run_start.span, run_start.start_ns)
            (check,) = named(held, semconv.HEALTH_CHECK, node)
            assert check.parent == named(held, semconv.RENDEZVOUS, node)[0].span
            for name in (semconv.RANK_STARTUP, semconv.RANK_SETUP, semconv.RANK_FIRST_STEP):
                own = named(held, name, node)
                assert len(own) == 2, name
                assert {span.parent for span in own} == {run_start.span}
                assert {span.resource[semconv.CYCLE_INDEX] for span in own} == {0 if held is first else 1}
        assert len(named(first, semconv.TEARDOWN, node)) == len(named(first, semconv.REPORT, node)) == 1
        outcome = named(first, semconv.CYCLE, node)[0].attributes[semconv.CYCLE_OUTCOME]
        assert outcome == ("failed" if node in saw else "peer_restart")
        assert named(second, semconv.CYCLE, node)[0].attributes[semconv.CYCLE_OUTCOME] == "completed"
        covers_the_restart(second, node)


ROUND = {semconv.RDZV_ROUND, semconv.PROFILING_CYCLE}
PLACE = {semconv.GROUP_RANK, semconv.GROUP_WORLD_SIZE}
DOCUMENTED = {
    semconv.STARTUP: {semconv.NODE},
    semconv.IMPORTS: {semconv.NODE},
    semconv.CYCLE_START: {*ROUND, semconv.NODE, semconv.MEMBERSHIP},
    semconv.CYCLE: {
        *(*ROUND, *PLACE, semconv.NODE, semconv.MEMBERSHIP, semconv.CYCLE_OUTCOME, semconv.MAX_RESTARTS),
        *(semconv.REMAINING_RESTARTS, semconv.RDZV_RUN_ID),
    },
    semconv.AWAIT_ROUND: ROUND,
    semconv.RENDEZVOUS: {*ROUND, semconv.GROUP_RANK},
    semconv.HEALTH_CHECK: ROUND,
    semconv.WORKER_LAUNCH: {*ROUND, *PLACE, semconv.NODE},
    semconv.RUN_START: {*ROUND, *PLACE},
    semconv.RUN: {*ROUND, *PLACE},
    semconv.FAULT: {*ROUND, *PLACE, semconv.NODE, semconv.CYCLE_FAILURES},
    semconv.TEARDOWN: {*ROUND, *PLACE, semconv.NODE},
}
RANK_RESOURCE = {
    *(semconv.CYCLE_INDEX, semconv.MEMBERSHIP, semconv.NNODES_ACTIVE, semconv.NNODES_SPARE, semconv.DL_RANK),
    *("service.name", "service.instance.id"),
}
NOT_YET = {semconv.ATTRIBUTION}
"""Spans of rooms that are not built."""
RARE = {semconv.RUN_SLICE}
"""After a minute only."""
NOT_HERE = {semconv.STEP, semconv.INFRA_RANK, semconv.DL_ROLE, semconv.CKPT_CALL_IDX}
"""Attributes of long runs, of jobs under a scheduler, and of rooms that are not built."""


def keeps_the_contract(spans: list[Got], *, hang: bool) -> None:
    """What is documented is there, and nothing is there that is not named in `semconv`."""
    known = {value for value in vars(semconv).values() if isinstance(value, str)}
    groups = {semconv.SPAN_GROUP_STARTUP, semconv.SPAN_GROUP_FT}
    expected = {name for name, group in semconv.GROUP_OF_SPAN.items() if group in groups}
    expected -= NOT_YET | RARE | (set() if hang else {semconv.EVIDENCE})
    expected -= {semconv.NOTIFICATION} if hang else set()
    assert {span.name for span in spans} - {semconv.NOTIFICATION} == expected - {semconv.NOTIFICATION}
    for span in spans:
        assert set(span.attributes) <= known, span.name
        assert set(span.attributes) >= DOCUMENTED.get(span.name, set()), span.name
        if span.name.startswith("nv.nvrx.ftl.rank."):
            assert set(span.resource) >= RANK_RESOURCE
            assert span.resource["service.name"] == "nvrx.rank"
        else:
            assert span.resource["service.name"] == "nvrx.ft_launcher"
            assert semconv.NODE in span.resource
    told = {key for span in spans for key in (*span.attributes, *span.resource)}
    told |= {key for span in spans for _, _, attributes in span.links for key in attributes}
    named = {value for value in known if value.startswith("nv.")}
    named -= {*semconv.GROUP_OF_SPAN, *semconv.PRESETS["all"]}
    assert {key for key in told if key.startswith("nv.")} == named - NOT_HERE


def covers_the_restart(second: list[Got], node: str) -> None:
    """From fault to first step, step after step, without a gap worth naming."""
    (restart,) = named(second, semconv.RESTART, node)
    steps = [span for name in RESTART_STEPS for span in named(second, name, node)]
    assert [span.name for span in steps] == RESTART_STEPS
    assert all(span.parent == restart.span for span in steps)
    assert steps[0].start_ns == restart.start_ns
    assert all(after.start_ns == before.end_ns for before, after in pairwise(steps))
    assert sum(span.seconds for span in steps) >= 0.95 * restart.seconds
    setups = [span.end_ns for span in named(second, semconv.RANK_SETUP, node)]
    assert abs(restart.end_ns - max(setups)) < 50_000_000


def test_a_killed_agent_leaves_whole_traces(job: Stage, collector: Receiver) -> None:
    """The opener of a round dies: its trace has a root all the same, and the next one leads back to its fault."""
    agents = {
        node: job.launch(
            node=node,
            options=(
                *("--nnodes", "1:2", "--max-restarts", "2", "--warm-workers", "off", "--lease-ttl", "3"),
                *("--otlp-endpoint", collector.endpoint),
            ),
            environment=SOON,
        )
        for node in ("n0", "n1")
    }
    ranks = job.up(0, 2, bound_s=60)
    collector.until(lambda: len(collector.named(semconv.RUN_START)) == 2, "both nodes told that they run")
    (root,) = collector.named(semconv.ROUND_START)
    victim = agents.pop(root.resource[semconv.NODE])
    victim.signal(signal.SIGKILL)
    job.finish(job.up(1, 1, bound_s=60))
    (survivor,) = agents.values()
    assert survivor.ends(bound_s=60) == 0
    assert len(ranks) == 2
    traces = follows_jaegers_rules(collector.spans)
    (mark,) = named(round_trace(traces, 0), semconv.FAULT)
    assert mark.attributes[semconv.FAULT_KIND] == "node_lost"
    (next_root,) = [span for span in round_trace(traces, 1) if not span.parent]
    assert (mark.trace, mark.span) in [link[:2] for link in next_root.links]
