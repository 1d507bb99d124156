"""What the standard variables and our options ask for, and metrics as they are sent and scraped."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections import deque

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from support.otlp_receiver import Receiver

from nvrx_telemetry import semconv
from nvrx_telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS, Metrics
from nvrx_telemetry.prometheus import prometheus_name
from nvrx_telemetry.sampling import sampling
from nvrx_telemetry.setup import Protocol, telemetry_config, without_secrets
from nvrx_telemetry.trouble import Trouble
from nvrx_telemetry.variables import Variables

ON = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("environment", "endpoint", "traces", "metrics"),
    [
        ({}, None, None, None),
        ({}, "http://c:4318", Protocol.HTTP, Protocol.HTTP),
        ({ON: "http://c:4318"}, None, Protocol.HTTP, Protocol.HTTP),
        ({ON: "http://c", "OTEL_SDK_DISABLED": "true"}, None, None, None),
        ({ON: "http://c", "OTEL_TRACES_EXPORTER": "none"}, None, None, Protocol.HTTP),
        ({ON: "http://c", "OTEL_METRICS_EXPORTER": "none"}, None, Protocol.HTTP, None),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, None, Protocol.HTTP, None),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, None, Protocol.HTTP, None),
        ({ON: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None, Protocol.GRPC, Protocol.GRPC),
        (
            {ON: "http://c", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"},
            None,
            Protocol.HTTP,
            Protocol.GRPC,
        ),
    ],
)
def test_the_variables_say_what_is_sent(
    environment: dict[str, str], endpoint: str | None, traces: Protocol | None, metrics: Protocol | None
) -> None:
    config, notices = telemetry_config(environment, endpoint, None)
    assert not notices
    found = (config.traces, config.metrics) if config else (None, None)
    assert found == (traces, metrics)


def test_a_port_for_prometheus_alone_turns_metrics_on() -> None:
    config, _ = telemetry_config({}, None, 9464)
    assert config is not None
    assert (config.traces, config.metrics, config.metrics_port) == (None, None, 9464)


def test_what_is_not_known_is_said() -> None:
    environment = {ON: "http://c", "OTEL_TRACES_EXPORTER": "zipkin", "NVRX_SPAN_GROUPS": "nonsense"}
    config, notices = telemetry_config(environment, None, None)
    assert config is not None
    assert config.traces is None
    assert "zipkin" in notices[0]
    assert "nonsense" in notices[1]


@pytest.mark.parametrize(
    ("environment", "ratio"),
    [
        ({}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "7"}, 1.0),
    ],
)
def test_sampling_is_as_opentelemetrys(environment: dict[str, str], ratio: float) -> None:
    ours = sampling(Variables(environment))
    assert ours.ratio == ratio
    theirs = TraceIdRatioBased(ratio)
    for trace_id in (n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128) for n in range(1, 300)):
        taken = theirs.should_sample(None, trace_id, "x").decision is Decision.RECORD_AND_SAMPLE
        assert ours.takes(trace_id) == taken


def measured(metrics: Metrics) -> None:
    metrics.add(semconv.METRIC_RESTARTS, 1, {semconv.ATTR_LEVEL: "in_job", semconv.ATTR_KIND: 'say "no"\n'})
    metrics.add(semconv.METRIC_ETCD, 0.004, {semconv.ATTR_OPERATION: "txn", semconv.ATTR_SUCCESS: True})
    metrics.gauges(semconv.METRIC_RANKS, [(2, {semconv.ATTR_STATE: "ready"})])


@pytest.mark.parametrize("kind", ["collector", "grpc_collector"])
def test_metrics_arrive_with_what_was_measured_before_the_sdk_was_there(
    request: pytest.FixtureRequest, kind: str
) -> None:
    receiver: Receiver = request.getfixturevalue(kind)
    protocol = "grpc" if kind == "grpc_collector" else "http/protobuf"
    config, _ = telemetry_config({"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}, receiver.endpoint, None)
    assert config is not None
    metrics = Metrics(config, {"service.name": "test"})
    measured(metrics)
    metrics.start()
    metrics.close(5.0)
    found = {metric.name: metric for metric in receiver.metrics}
    assert set(found) == {semconv.METRIC_RESTARTS, semconv.METRIC_ETCD, semconv.METRIC_RANKS}
    assert found[semconv.METRIC_RESTARTS].sum.data_points[0].as_int == 1
    assert found[semconv.METRIC_ETCD].histogram.data_points[0].count == 1
    assert found[semconv.METRIC_ETCD].unit == "s"


def judged_by_prometheus(text: str) -> None:
    """Each family has its help and type, and Prometheus' own linter, where there is one, has nothing to say."""
    families = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    assert families == set(re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE))
    linter = shutil.which("promtool")
    if linter is not None:
        told = subprocess.run(
            [linter, "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=30
        )
        assert (told.returncode, told.stdout + told.stderr) == (0, "")


def test_prometheus_reads_what_was_measured() -> None:
    config, _ = telemetry_config({}, None, 1)
    assert config is not None
    metrics = Metrics(config, {"service.name": "test"})
    metrics.start()
    measured(metrics)
    text = metrics.exposition()
    metrics.close(5.0)
    lines = text.splitlines()
    judged_by_prometheus(text)
    assert 'nvrx_restarts_total{nvrx_fault_kind="say \\"no\\"\\n",nvrx_restart_level="in_job"} 1' in lines
    assert "# TYPE nvrx_etcd_request_duration_seconds histogram" in lines
    buckets = [line for line in lines if line.startswith("nvrx_etcd_request_duration_seconds_bucket")]
    counts = [int(line.rpartition(" ")[2]) for line in buckets]
    assert counts == sorted(counts)
    assert 'le="+Inf"' in buckets[-1]
    assert counts[-1] == 1
    assert 'nvrx_ranks{nvrx_rank_state="ready"} 2' in lines
    assert 'nvrx_etcd_success="true"' in buckets[-1], "as OpenTelemetry spells it"
    sample = re.compile(r'[a-z_]+(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? [-+.0-9e]+')
    assert all(line.startswith("#") or sample.fullmatch(line) for line in lines if line)


def test_a_metric_of_each_kind_has_its_prometheus_name() -> None:
    assert prometheus_name("nvrx.log.spooled", "By", counter=True) == "nvrx_log_spooled_bytes_total"
    assert prometheus_name("nvrx.rank.beat.age", "s", counter=False) == "nvrx_rank_beat_age_seconds"
    assert prometheus_name("nvrx.goodput", "1", counter=False) == "nvrx_goodput_ratio"
    assert prometheus_name("nvrx.ranks", "{rank}", counter=False) == "nvrx_ranks"


def test_every_metric_has_an_instrument() -> None:
    names = {value for name, value in vars(semconv).items() if name.startswith("METRIC_")}
    assert names == {*COUNTERS, *HISTOGRAMS, *GAUGES}


@pytest.mark.parametrize("text", ["inf", "nan", "-1", "0", "0.2", "many", "1e999"])
def test_numbers_that_are_none_turn_nothing_off(text: str) -> None:
    names = ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_SCHEDULE_DELAY")
    config, _ = telemetry_config({ON: "http://c", **dict.fromkeys(names, text)}, None, None)
    assert config is not None
    assert 1 <= config.batch <= config.queue
    assert 0 < config.delay_s < 100


def test_numbers_beyond_all_measure_are_what_timers_and_queues_take() -> None:
    names = ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_SCHEDULE_DELAY")
    environment = {ON: "http://c", **dict.fromkeys((*names, "OTEL_METRIC_EXPORT_INTERVAL"), "1e300")}
    config, _ = telemetry_config(environment, None, None)
    assert config is not None
    deque[int](maxlen=config.queue)
    for seconds in (config.delay_s, config.interval_s):
        assert 1e6 < seconds < threading.TIMEOUT_MAX


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("http://user:secret@c:4318/x@y", "http://c:4318/…"),
        ("user:secret@c:4318", "c:4318"),
        ("http://user:secret/more@c:4318", "http://…/…"),
        ("http://user:#secret@c:4318", "http://…#…"),
        ("https://c/receiver/secret/", "https://c/…"),
        ("https://c:1?key=secret", "https://c:1?…"),
        ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/"),
        ("https://c", "https://c"),
        ("", ""),
        ("c:4317", "c:4317"),
    ],
)
def test_no_password_is_shown(endpoint: str, shown: str) -> None:
    assert without_secrets(endpoint) == shown


@pytest.mark.parametrize(
    "reason",
    [
        "No connection adapters were found for 'junk://me:hunter2@c:4318/v1/traces'",
        "Invalid return character(s) in header value: 'Bearer\nhunter2'",
        "Transient error HTTPConnectionPool(host='c'): Max retries exceeded with url: /?key=hunter2/v1/traces (x)",
        "Transient error HTTPConnectionPool(host='c'): Max retries exceeded with url: /in/hunter2/v1/traces (x)",
        "Transient error of HTTPConnectionPool: https://c:4318/in/hunter2: no",
        "Transient error StatusCode.UNAVAILABLE while exporting to me:hunter2@c:1; errors resolving me:hunter2@c:1: no",
    ],
)
def test_a_reason_shows_no_secret(reason: str) -> None:
    told: list[str] = []
    Trouble("http://c", told.append).failed(reason)
    assert "hunter2" not in told[0]
    assert reason[:20] in told[0]
    assert told[0].endswith("; the job goes on, it is tried again")


def test_a_path_that_everybody_has_is_shown() -> None:
    told: list[str] = []
    said = "Max retries exceeded with url: /v1/traces (Caused by x at http://c:4318/v1/metrics)"
    Trouble("http://c", told.append).failed(said)
    assert said in told[0]


def test_what_cannot_be_sent_at_the_end_is_told_with_its_reason() -> None:
    told: list[str] = []
    trouble = Trouble("http://c", told.append)
    trouble.heard("Connection refused")
    trouble.ends()
    trouble.heard("Shutdown in progress, aborting retry.")
    trouble.failed()
    assert told == ["telemetry cannot be delivered to http://c: Connection refused; the last of it is lost"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Transient error Bad Gateway encountered while exporting spans batch, retrying in 1.83s.",
            "Transient error Bad Gateway encountered while exporting spans batch; the last of it is lost",
        ),
        (
            "Transient error StatusCode.UNAVAILABLE, retrying in 0.89s. Error details: no route",
            "Transient error StatusCode.UNAVAILABLE; Error details: no route; the last of it is lost",
        ),
        (
            r"('Connection aborted.', BadStatusLine('\x00\x00\x18\x04'))",
            (
                r"('Connection aborted.', BadStatusLine('\x00\x00\x18\x04')); it speaks HTTP/2 there, as OTLP "
                "over gRPC does: OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or the port for HTTP, mostly 4318"
            ),
        ),
    ],
)
def test_the_reason_is_shown_with_what_to_do_and_without_when_it_is_tried_again(
    said: str, shown: str
) -> None:
    told: list[str] = []
    trouble = Trouble("http://c", told.append)
    trouble.heard(said)
    trouble.ends()
    trouble.failed()
    assert told == [f"telemetry cannot be delivered to http://c: {shown}"]


def test_the_reason_is_what_was_wrong_and_not_that_it_was_given_up() -> None:
    told: list[str] = []
    trouble = Trouble("http://c", told.append)
    given_up = "Failed to export span batch due to timeout, max retries or shutdown."
    trouble.heard(
        "Transient error Service Unavailable encountered while exporting span batch, retrying in 1s."
    )
    trouble.heard(given_up)
    trouble.failed()
    assert "Service Unavailable" in told[0]
    trouble.worked()
    trouble.heard(given_up)
    trouble.ends()
    trouble.failed()
    assert len(told) == 1, "one that comes and goes is spoken of once in a while"
    assert trouble.failures == 2


@pytest.mark.parametrize(
    ("reason", "signal"),
    [
        ("Failed to export metrics batch code: 404, reason: Not Found", "METRICS"),
        ("Failed to export spans batch code: 404, reason: Not Found", "TRACES"),
        (
            "Failed to export metrics to c:4317, error code: StatusCode.UNIMPLEMENTED, error details: x",
            "METRICS",
        ),
        ("Failed to export metrics batch code: 400, reason: Bad Request", ""),
    ],
)
def test_a_collector_that_does_not_know_a_signal_is_told_with_what_to_do(reason: str, signal: str) -> None:
    """As Jaeger, which takes no metrics."""
    told: list[str] = []
    trouble = Trouble("http://c", told.append)
    trouble.heard(reason)
    trouble.failed()
    assert (f"OTEL_{signal}_EXPORTER=none" in told[0]) is bool(signal)
