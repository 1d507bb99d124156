"""What ranks of whole jobs get of the telemetry: their own round's trace, warm or cold, sampled or not, off or on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.otlp_receiver import Got, Receiver
from support.stage import Stage

from nvrx_telemetry import semconv, spool_line
from nvrx_telemetry.traceparent import is_sampled, parsed

pytestmark = pytest.mark.e2e
PROGRAM = str(Path(__file__).parents[1] / "support" / "traced_program.py")
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
COLD = ("--warm-workers", "off")
PERSONS = {
    "BAGGAGE": "team=nlp,run=7%20b",
    "TRACESTATE": "vendor=abc",
    "TRACEPARENT": f"00-{'a' * 32}-{'b' * 16}-01",
    "OTEL_RESOURCE_ATTRIBUTES": "team=nlp,place=rack%204",
}


def finished(job: Stage, collector: Receiver, *options: str, **environment: str) -> dict[str, Any]:
    """A job of one rank and one round; what that found."""
    agent = job.launch(
        *(PROGRAM, str(job.folder)),
        node="a",
        options=(*COLD, "--otlp-endpoint", collector.endpoint, *options),
        environment={**SOON, **environment},
    )
    assert agent.ends() == 0, job.told()
    return found(job, 0)


def found(job: Stage, number: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((job.folder / f"{number}.json").read_text())
    assert told["loaded"] == [], "ranks load neither the SDK nor gRPC"
    return told


def of_round(spans: list[Got], name: str, number: int) -> list[Got]:
    """Spans of a rank, by the resource, or of the agent."""
    return [
        span
        for span in spans
        if span.name == name
        and number in (span.resource.get(semconv.CYCLE_INDEX), span.attributes.get(semconv.RDZV_ROUND))
    ]


@pytest.mark.parametrize(
    "asked",
    [
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"},
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.0"},
        {"OTEL_TRACES_SAMPLER": "parentbased_always_off"},
    ],
    ids=lambda asked: asked["OTEL_TRACES_SAMPLER"],
)
def test_a_trace_that_is_not_sampled_is_told_nowhere(
    job: Stage, collector: Receiver, asked: dict[str, str]
) -> None:
    told = finished(job, collector, **asked)["environment"]
    assert not collector.spans
    assert {metric.name for metric in collector.metrics} >= {semconv.METRIC_ETCD, semconv.METRIC_ROUND}
    assert parsed(told["TRACEPARENT"]) is not None, (
        "who traces in the rank is to know that this one is left out"
    )
    assert not is_sampled(told["TRACEPARENT"])
    assert spool_line.VARIABLE not in told


@pytest.mark.parametrize("sampler", ["always_on", "parentbased_always_on", "parentbased_traceidratio"])
def test_a_trace_that_is_sampled_is_told_whole(job: Stage, collector: Receiver, sampler: str) -> None:
    told = finished(job, collector, OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG="1.0")["environment"]
    assert is_sampled(told["TRACEPARENT"])
    assert {semconv.ROUND_START, semconv.CYCLE, semconv.RANK_FIRST_STEP} <= {s.name for s in collector.spans}


def test_what_the_person_had_set_stays(job: Stage, collector: Receiver) -> None:
    told = finished(job, collector, **PERSONS)["environment"]
    assert told["BAGGAGE"] == PERSONS["BAGGAGE"]
    assert told["TRACESTATE"] == "", "it belonged to the trace that the rank is not in"
    (run_start,) = of_round(collector.spans, semconv.RUN_START, 0)
    assert told["TRACEPARENT"] == f"00-{run_start.trace}-{run_start.span}-01"
    pairs = dict(pair.split("=") for pair in told["OTEL_RESOURCE_ATTRIBUTES"].split(","))
    assert (pairs["team"], pairs["place"], pairs[semconv.DL_RANK]) == ("nlp", "rack%204", "0")
    for span in collector.spans:
        assert (span.resource["team"], span.resource["place"]) == ("nlp", "rack 4")


def test_where_only_metrics_are_sent_the_persons_trace_goes_on(job: Stage, collector: Receiver) -> None:
    told = finished(job, collector, OTEL_TRACES_EXPORTER="none", **PERSONS)["environment"]
    assert (told["TRACEPARENT"], told["TRACESTATE"]) == (PERSONS["TRACEPARENT"], PERSONS["TRACESTATE"])
    assert f"{semconv.DL_RANK}=0" in told["OTEL_RESOURCE_ATTRIBUTES"]
    assert spool_line.VARIABLE not in told
    assert not collector.spans
    assert semconv.METRIC_ROUND in {metric.name for metric in collector.metrics}


def test_starts_of_ranks_that_die_with_their_keeper_are_told(job: Stage, collector: Receiver) -> None:
    """Nobody sees such a rank end, and no look may have come since it started."""
    os.mkfifo(job.folder / "go")
    agent = job.launch(
        *(PROGRAM, str(job.folder)),
        node="a",
        options=(*COLD, "--max-restarts", "1", "--otlp-endpoint", collector.endpoint),
    )
    agent.says("has trained")
    os.kill(agent.keeper(), signal.SIGKILL)
    assert agent.ends() == 0, job.told()
    (run_start,) = of_round(collector.spans, semconv.RUN_START, 0)
    for name in (semconv.RANK_STARTUP, semconv.RANK_SETUP, semconv.RANK_FIRST_STEP):
        (span,) = of_round(collector.spans, name, 0)
        assert span.parent == run_start.span


@pytest.mark.parametrize("spelled", ["true", "TRUE"])
def test_a_disabled_sdk_is_off_whatever_else_says_on(job: Stage, collector: Receiver, spelled: str) -> None:
    told = finished(job, collector, OTEL_SDK_DISABLED=spelled, **PERSONS)["environment"]
    assert {name: told.get(name) for name in PERSONS} == PERSONS
    assert spool_line.VARIABLE not in told
    assert (collector.requests, collector.spans, collector.metrics) == (0, [], [])


def test_names_of_checkpoints_and_attribution_work_in_user_code(job: Stage, collector: Receiver) -> None:
    finished(job, collector, NVRX_SPAN_GROUPS="default")
    (run_start,) = of_round(collector.spans, semconv.RUN_START, 0)
    saves = collector.named(semconv.CKPT_SCHEDULE)
    assert [span.attributes for span in saves] == [{semconv.CKPT_CALL_IDX: step} for step in range(4)]
    assert {(span.trace, span.parent) for span in saves} == {(run_start.trace, run_start.span)}
    assert collector.named(semconv.CKPT_WRITE) == []
    below = collector.named(semconv.ATTRIBUTION)
    assert [span.parent for span in below] == [span.span for span in saves]
    assert all(span.attributes == {semconv.FAULT_KIND: "hang"} for span in below)
    assert {span.resource[semconv.DL_RANK] for span in (*saves, *below)} == {0}


@pytest.mark.parametrize("groups", ["none", "nv.nvrx.ckpt"])
def test_spans_of_a_rank_have_their_root_where_its_group_is_off(
    job: Stage, collector: Receiver, groups: str
) -> None:
    """Spans of checkpoints are below `run_start`, which is below `cycle_start` and `round_start`."""
    finished(job, collector, NVRX_SPAN_GROUPS=groups)
    ids = {span.span for span in collector.spans}
    assert [span.name for span in collector.spans if span.parent and span.parent not in ids] == []
    names = [span.name for span in collector.spans]
    above = [semconv.ROUND_START, semconv.CYCLE_START, semconv.RUN_START]
    told = {semconv.CKPT_SCHEDULE: 4} if groups != "none" else {}
    assert Counter(names) == {**(dict.fromkeys(above, 1) if told else {}), **told}


def test_phases_of_checkpoints_are_on_when_asked_for(job: Stage, collector: Receiver) -> None:
    finished(job, collector, NVRX_SPAN_GROUPS="per_step")
    saves, writes = collector.named(semconv.CKPT_SCHEDULE), collector.named(semconv.CKPT_WRITE)
    assert [span.parent for span in writes] == [span.span for span in saves]
    assert len(writes) == 4


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_ranks_of_a_restart_are_in_the_trace_of_their_own_round(
    job: Stage, collector: Receiver, start: str
) -> None:
    os.mkfifo(job.folder / "go")
    warm = start == "warm"
    how = ("--warm-workers", "1", "--warm-imports", "json") if warm else COLD
    agent = job.launch(
        *(PROGRAM, str(job.folder)),
        node="a",
        options=(*how, "--max-restarts", "1", "--startup-grace", "0", "--otlp-endpoint", collector.endpoint),
        environment=SOON,
    )
    logs = job.folder / "logs" / "a" / job.run_id

    def noted(words: str) -> bool:
        job.for_a_while(0.05)  # a line of the agent's log makes no sound
        return any(words in log.read_text() for log in logs.glob("agent-*.log"))

    agent.says("has trained")
    bound_s = time.monotonic() + 30
    while warm and not noted("warm workers: 1 ready"):
        assert time.monotonic() < bound_s, job.told()
    (job.folder / "go").write_text("now")
    assert agent.ends() == 0, job.told()
    assert noted("warm workers: 1 of 1 ranks start warm") == warm
    told = [found(job, number) for number in (0, 1)]
    for number in (0, 1):
        (run_start,) = of_round(collector.spans, semconv.RUN_START, number)
        environment = told[number]["environment"]
        assert environment["TRACEPARENT"] == f"00-{run_start.trace}-{run_start.span}-01"
        assert f"{semconv.CYCLE_INDEX}={number}," in f"{environment['OTEL_RESOURCE_ATTRIBUTES']},"
        own = [semconv.RANK_STARTUP, semconv.RANK_SETUP, semconv.RANK_FIRST_STEP]
        (startup,), (setup,), (first_step,) = (of_round(collector.spans, name, number) for name in own)
        saves = of_round(collector.spans, semconv.CKPT_SCHEDULE, number)
        assert len(saves) == 4
        for span in (startup, setup, first_step, *saves):
            assert (span.trace, span.parent) == (run_start.trace, run_start.span), span.name
            assert span.resource["service.instance.id"].endswith(f"round-{number}")
        assert startup.start_ns <= startup.end_ns == setup.start_ns <= setup.end_ns == first_step.start_ns
        (launch,) = of_round(collector.spans, semconv.WORKER_LAUNCH, number)
        assert startup.start_ns >= launch.start_ns, "a warm process is older than its round, its start is not"
    first, second = (of_round(collector.spans, semconv.ROUND_START, number) for number in (0, 1))
    assert first[0].trace != second[0].trace
