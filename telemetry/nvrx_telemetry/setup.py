"""What an agent was asked to send, and the exporters for it: `OTEL_*` variables and `--otlp-endpoint`.

The standard variables mean what OpenTelemetry says: headers, certificates, compression, time-outs and resource are read
by its exporters themselves. Nothing of the SDK is loaded before spans or metrics are sent, and never in a rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING

from nvrx_telemetry.groups import VARIABLE, enabled_groups
from nvrx_telemetry.sampling import Sampling, sampling

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_DELAY_MS = 5000.0
_INTERVAL_MS = 60_000.0
_QUEUE = 8192
_BATCH = 512
_MOST = 2**31 - 1
"""More than that no timer and no queue takes."""


class Protocol(Enum):
    """How OTLP travels."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """What is sent. `traces` and `metrics` name the protocol, None for not at all.

    `endpoint`: the collector's base URL where a person gave it as an option, empty where the variables do.
    `metrics_port`: where Prometheus finds the metrics. `delay_s`: how long spans are gathered.
    """

    traces: Protocol | None
    metrics: Protocol | None
    endpoint: str
    metrics_port: int | None
    groups: frozenset[str]
    sampling: Sampling
    delay_s: float
    interval_s: float
    queue: int
    batch: int


def telemetry_config(
    environment: Mapping[str, str], endpoint: str | None, metrics_port: int | None
) -> tuple[TelemetryConfig | None, list[str]]:
    """What to send, None for nothing, and lines for the person about what cannot be done as asked."""
    notices: list[str] = []
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None, []
    traces = _wanted(environment, "TRACES", endpoint, notices)
    metrics = _wanted(environment, "METRICS", endpoint, notices)
    if traces is None and metrics is None and metrics_port is None:
        return None, notices
    groups, unknown = enabled_groups(environment.get(VARIABLE, ""))
    if unknown:
        notices.append(f"{VARIABLE}: there is no group {', '.join(unknown)}; it is left out")
    batch = max(1, round(_number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH)))
    return (
        TelemetryConfig(
            traces=traces,
            metrics=metrics,
            endpoint=(endpoint or "").rstrip("/"),
            metrics_port=metrics_port,
            groups=groups,
            sampling=sampling(environment),
            delay_s=_number(environment, "OTEL_BSP_SCHEDULE_DELAY", _DELAY_MS) / 1000,
            interval_s=_number(environment, "OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS) / 1000,
            queue=max(round(_number(environment, "OTEL_BSP_MAX_QUEUE_SIZE", _QUEUE)), batch),
            batch=batch,
        ),
        notices,
    )


def _wanted(
    environment: Mapping[str, str], signal: str, endpoint: str | None, notices: list[str]
) -> Protocol | None:
    """The protocol for a signal, None if nobody asked for the signal."""
    exporters = [word.strip() for word in environment.get(f"OTEL_{signal}_EXPORTER", "").split(",")]
    named = [environment.get(_ENDPOINT), environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"), endpoint]
    if "none" in exporters or not (any(named) or "otlp" in exporters):
        return None
    foreign = [word for word in exporters if word not in ("", "otlp")]
    if foreign:
        notices.append(f"OTEL_{signal}_EXPORTER: {', '.join(foreign)} is not known here, otlp is")
        if "otlp" not in exporters:
            return None
    text = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environment.get(_PROTOCOL)
    if text == Protocol.GRPC.value:
        if find_spec("opentelemetry.exporter.otlp.proto.grpc") is None:
            notices.append(
                f"no {signal.lower()} are sent: OTLP over gRPC needs `pip install 'nvrx-async[otlp-grpc]'`, "
                f"or {_PROTOCOL}={Protocol.HTTP.value}"
            )
            return None
        return Protocol.GRPC
    if text and text != Protocol.HTTP.value:
        notices.append(f"{_PROTOCOL}={text} is not known here, {Protocol.HTTP.value} is used")
    return Protocol.HTTP


def span_exporter(config: TelemetryConfig) -> SpanExporter:
    """The exporter for spans; loads the SDK."""
    if config.traces is Protocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter as OverGrpc,
        )

        return OverGrpc(endpoint=config.endpoint or None)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - loads the SDK
        OTLPSpanExporter,
    )

    return OTLPSpanExporter(endpoint=f"{config.endpoint}/v1/traces" if config.endpoint else None)


def metric_exporter(config: TelemetryConfig) -> MetricExporter:
    """The exporter for metrics; loads the SDK."""
    if config.metrics is Protocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (  # noqa: PLC0415 - an extra
            OTLPMetricExporter as OverGrpc,
        )

        return OverGrpc(endpoint=config.endpoint or None)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415 - loads the SDK
        OTLPMetricExporter,
    )

    return OTLPMetricExporter(endpoint=f"{config.endpoint}/v1/metrics" if config.endpoint else None)


def without_password(endpoint: str) -> str:
    """The endpoint as it may be shown."""
    scheme, there, rest = endpoint.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{there}{host.rpartition('@')[2]}{slash}{path}" if there else endpoint


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    """A positive number; what is none is taken for not given, as OpenTelemetry does."""
    try:
        value = float(environment.get(name, ""))
    except ValueError:
        return default
    return min(value, _MOST) if 0 < value < inf else default
