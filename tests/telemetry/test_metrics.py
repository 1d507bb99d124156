"""Metrics before, while and after the SDK is loaded: nothing measured is lost, and nobody waits long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.otlp_receiver import Receiver

from nvrx_telemetry import metrics as module
from nvrx_telemetry import semconv
from nvrx_telemetry.metrics import Metrics
from nvrx_telemetry.setup import telemetry_config
from nvrx_telemetry.trouble import Trouble

BOUND_S = 30.0
GENEROUS_S = 5.0


def made(receiver: Receiver | None, trouble: Trouble | None = None, port: int | None = None) -> Metrics:
    endpoint = receiver.endpoint if receiver is not None else None
    config, _ = telemetry_config({}, endpoint, port)
    assert config is not None
    return Metrics(config, {"service.name": "test"}, trouble)


def restarts(receiver: Receiver) -> list[int]:
    """The value of the counter in each message that came."""
    return [
        metric.sum.data_points[0].as_int
        for metric in receiver.metrics
        if metric.name == semconv.METRIC_RESTARTS
    ]


def test_a_job_that_ends_before_the_sdk_is_loaded_sends_what_it_has(collector: Receiver) -> None:
    metrics = made(collector)
    metrics.add(semconv.METRIC_RESTARTS, 1)
    metrics.add(semconv.METRIC_RESTARTS, 2)
    metrics.gauges(semconv.METRIC_ROUND, [(4, {})])
    assert metrics.close(BOUND_S) == ""
    assert restarts(collector) == [3]
    (told,) = [metric for metric in collector.metrics if metric.name == semconv.METRIC_ROUND]
    assert told.gauge.data_points[0].as_int == 4


def test_a_job_without_numbers_loads_nothing(collector: Receiver) -> None:
    metrics = made(collector)
    assert metrics.close(BOUND_S) == ""
    assert metrics._provider is None
    assert not collector.metrics


class Held:
    """The exporter's import, held for as long as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.calls = 0
        real: Callable[[Any], Any] = module.metric_exporter

        def slow(config: Any) -> Any:
            self.calls += 1
            self.entered.set()
            assert self.go_on.wait(BOUND_S)
            return real(config)

        monkeypatch.setattr(module, "metric_exporter", slow)


def test_a_job_that_ends_while_the_sdk_is_being_loaded_sends_once(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, metrics = Held(monkeypatch), made(collector)
    metrics.add(semconv.METRIC_RESTARTS, 1)
    loading = threading.Thread(target=metrics.start)
    loading.start()
    assert held.entered.wait(BOUND_S)
    metrics.add(semconv.METRIC_RESTARTS, 1)
    closing = threading.Thread(target=metrics.close, args=(BOUND_S,))
    closing.start()
    held.go_on.set()
    closing.join(BOUND_S)
    loading.join(BOUND_S)
    assert held.calls == 1
    assert restarts(collector) == [2]


def test_an_end_does_not_wait_for_a_load_that_takes_too_long(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, metrics = Held(monkeypatch), made(collector)
    metrics.add(semconv.METRIC_RESTARTS, 1)
    began_s = time.monotonic()
    metrics.close(0.05)
    assert time.monotonic() - began_s < GENEROUS_S
    held.go_on.set()
    (ending,) = [thread for thread in threading.enumerate() if thread.name == "nvrx-metrics-end"]
    ending.join(BOUND_S)
    assert not ending.is_alive()


def test_an_end_does_not_wait_for_a_slow_collector_and_says_so(collector: Receiver) -> None:
    told: list[str] = []
    trouble = Trouble("there", told.append)
    metrics = made(collector, trouble)
    metrics.start()
    metrics.add(semconv.METRIC_RESTARTS, 1)
    collector.mode = "slow"
    trouble.ends()
    began_s = time.monotonic()
    metrics.close(0.2)
    assert time.monotonic() - began_s < GENEROUS_S
    collector.closing.set()
    for thread in threading.enumerate():
        if thread.name == "nvrx-metrics-end":
            thread.join(BOUND_S)
    assert told == ["telemetry cannot be delivered to there; the last of it is lost"]


def test_a_collector_that_refuses_is_told_of_once_and_never_shown(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    told: list[str] = []
    metrics = made(collector, Trouble("there", told.append))
    metrics.start()
    metrics.add(semconv.METRIC_RESTARTS, 1)
    collector.mode = "refuses"
    metrics.settle()
    assert metrics._provider is not None
    for _ in range(2):
        metrics._provider.force_flush()
    assert len(told) == 1
    assert told[0].startswith("telemetry cannot be delivered to there: ")
    collector.mode = "answers"
    assert metrics.close(BOUND_S) == ""
    assert restarts(collector) == [1]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("when", ["started", "ends"])
def test_what_cannot_be_loaded_is_said_once_and_breaks_nothing(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def broken(config: Any) -> Any:
        raise ImportError("no such exporter")

    monkeypatch.setattr(module, "metric_exporter", broken)
    metrics = made(collector)
    metrics.add(semconv.METRIC_RESTARTS, 1)
    found = [metrics.start()] if when == "started" else []
    metrics.add(semconv.METRIC_RESTARTS, 1)
    found.append(metrics.close(BOUND_S))
    assert [text for text in found if text] == ["ImportError: no such exporter"]


def test_a_gauge_tells_what_was_told_last(collector: Receiver) -> None:
    metrics = made(None, port=1)
    metrics.gauges(semconv.METRIC_RANKS, [(2, {semconv.ATTR_STATE: "ready"})])
    metrics.start()
    assert 'nvrx_ranks{nvrx_rank_state="ready"} 2' in metrics.exposition().splitlines()
    states = [(1, {semconv.ATTR_STATE: "ready"}), (1, {semconv.ATTR_STATE: "hung"})]
    metrics.gauges(semconv.METRIC_RANKS, states)
    lines = metrics.exposition().splitlines()
    assert {'nvrx_ranks{nvrx_rank_state="ready"} 1', 'nvrx_ranks{nvrx_rank_state="hung"} 1'} <= set(lines)
    metrics.gauges(semconv.METRIC_RANKS, [])
    assert "nvrx_ranks{" not in metrics.exposition()
    assert metrics.close(BOUND_S) == ""


def test_what_is_measured_while_values_of_before_are_noted_counts_once(collector: Receiver) -> None:
    """Several threads add while another one loads: the sum is right."""
    metrics, threads, each = made(collector), 4, 200
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        adding = [
            threading.Thread(target=lambda: [metrics.add(semconv.METRIC_RESTARTS, 1) for _ in range(each)])
            for _ in range(threads)
        ]
        for thread in adding:
            thread.start()
        metrics.start()
        for thread in adding:
            thread.join(BOUND_S)
    finally:
        sys.setswitchinterval(interval)
    assert metrics.close(BOUND_S) == ""
    assert restarts(collector) == [threads * each]


@pytest.mark.parametrize("word", ["", "unknown", "always_on"])
def test_no_filter_of_exemplars_ends_the_metrics(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", word)
    metrics = made(collector)
    metrics.add(semconv.METRIC_RESTARTS, 1)
    assert metrics.close(BOUND_S) == ""
    assert restarts(collector) == [1]
