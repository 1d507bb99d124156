"""What an agent was asked to send, and the exporters for it: `OTEL_*` variables and `--otlp-endpoint`.

The standard variables mean what OpenTelemetry says (its specification, `configuration/sdk-environment-variables` and
`protocol/exporter`). Headers, certificates and resource are read by its SDK, and looked at here: what it would drop
without a word is said. Nothing of the SDK is loaded before spans or metrics are sent, and never in a rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nvrx_telemetry.groups import VARIABLE, enabled_groups
from nvrx_telemetry.limits import limits
from nvrx_telemetry.otlp_variables import PREFIX, check_otlp, compression, timeout_s
from nvrx_telemetry.sampling import Sampling, sampling
from nvrx_telemetry.variables import Variables

if TYPE_CHECKING:
    import grpc
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

_DELAY_MS = 5000.0
_INTERVAL_MS = 60_000.0
_QUEUE = 8192
_BATCH = 512
_OTLP = {"otlp": "", "otlp_proto_http": "http/protobuf", "otlp_proto_grpc": "grpc"}
"""Exporters that are known, and the protocol that two of them name."""
_TEMPORALITIES = ("cumulative", "delta", "lowmemory")
_INSTEAD = {
    "prometheus": "--metrics-port 9464 lets Prometheus ask",
    "console": "`nvrx trace JOB` shows restarts in a terminal",
}


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
    variables = Variables(environment)
    config = _config(variables, (endpoint or "").rstrip("/"), metrics_port)
    return config, variables.notices


def _config(variables: Variables, endpoint: str, metrics_port: int | None) -> TelemetryConfig | None:
    if variables.truth("OTEL_SDK_DISABLED"):
        if endpoint or metrics_port is not None:
            variables.say("OTEL_SDK_DISABLED=true: no traces and no metrics, whatever options say")
        return None
    traces = _wanted(variables, "TRACES", endpoint, metrics_port)
    metrics = _wanted(variables, "METRICS", endpoint, metrics_port)
    _check_what_nobody_reads(variables)
    if metrics is not None:
        variables.word(f"{PREFIX}METRICS_TEMPORALITY_PREFERENCE", _TEMPORALITIES, "cumulative is used")
    if traces is None and metrics is None and metrics_port is None:
        return None
    groups, unknown = enabled_groups(variables.text(VARIABLE))
    if unknown:
        variables.say(f"{VARIABLE}: there is no group {', '.join(unknown)}; it is left out")
    if traces is not None:
        limits(variables)
    batch = max(1, round(variables.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH)))
    return TelemetryConfig(
        traces=traces,
        metrics=metrics,
        endpoint=endpoint,
        metrics_port=metrics_port,
        groups=groups,
        sampling=sampling(variables),
        delay_s=variables.number("OTEL_BSP_SCHEDULE_DELAY", _DELAY_MS) / 1000,
        interval_s=variables.number("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS) / 1000,
        queue=max(round(variables.number("OTEL_BSP_MAX_QUEUE_SIZE", _QUEUE)), batch),
        batch=batch,
    )


def _wanted(variables: Variables, signal: str, endpoint: str, metrics_port: int | None) -> Protocol | None:
    """The protocol for a signal, None if nobody asked for the signal, or it cannot be sent."""
    variable = f"OTEL_{signal}_EXPORTER"
    exporters = [word for part in variables.text(variable).split(",") if (word := part.strip().lower())]
    named = [name for name in exporters if name in _OTLP]
    foreign = [name for name in exporters if name not in (*_OTLP, "none")]
    if "prometheus" in foreign and signal == "METRICS" and metrics_port is not None:
        foreign.remove("prometheus")
    if "none" in exporters or not (exporters or endpoint or _endpoint(variables, signal)[1]):
        return None
    if foreign:
        hints = [_INSTEAD[name] for name in foreign if name in _INSTEAD]
        lost = f"no {signal.lower()} are sent" if not named else "only otlp is used"
        known = "otlp and none are" if not hints else f"otlp and none are; {', '.join(hints)}"
        variables.say(
            f"{variable}={','.join(exporters)}: {lost}, {', '.join(foreign)} is not known here ({known})"
        )
    if exporters and not named:
        return None
    protocol = _protocol(variables, signal, next((_OTLP[name] for name in named if _OTLP[name]), ""))
    over_grpc = protocol is Protocol.GRPC
    if protocol is None or not _can_be_sent_to(variables, signal, endpoint, over_grpc=over_grpc):
        return None
    return protocol if check_otlp(variables, signal, over_grpc=over_grpc) else None


def _protocol(variables: Variables, signal: str, by_exporter: str) -> Protocol | None:
    """None where it is not installed."""
    name, text = variables.first(f"{PREFIX}{signal}_PROTOCOL", f"{PREFIX}PROTOCOL")
    text = by_exporter or text.lower()
    if text == Protocol.GRPC.value:
        if find_spec("opentelemetry.exporter.otlp.proto.grpc") is not None:
            return Protocol.GRPC
        variables.say(
            f"no {signal.lower()} are sent: OTLP over gRPC needs `pip install 'nvrx-async[otlp-grpc]'`, "
            f"or {name}={Protocol.HTTP.value}"
        )
        return None
    if text and text != Protocol.HTTP.value:
        known = " and ".join(one.value for one in Protocol)
        variables.say(f"{name}={text} is not known here ({known} are), {Protocol.HTTP.value} is used")
    return Protocol.HTTP


def _endpoint(variables: Variables, signal: str) -> tuple[str, str]:
    return variables.first(f"{PREFIX}{signal}_ENDPOINT", f"{PREFIX}ENDPOINT")


def _can_be_sent_to(variables: Variables, signal: str, endpoint: str, *, over_grpc: bool) -> bool:
    """Whether requests' and gRPC's clients understand where it is to be sent."""
    name, text = ("--otlp-endpoint", endpoint) if endpoint else _endpoint(variables, signal)
    if over_grpc and "@" in text:
        variables.say(
            f"no {signal.lower()} are sent: {name} has a user, which gRPC takes for a part of the host's name; "
            f"{PREFIX}HEADERS takes what it asks for"
        )
        return False
    if over_grpc or not text:
        return True
    shown = without_secrets(text)
    if not text.lower().startswith(("http://", "https://")):
        variables.say(
            f"no {signal.lower()} are sent: {name}={shown} is no URL; give one such as http://collector:4318"
        )
        return False
    whole = f"/v1/{signal.lower()}"
    if text.rstrip("/").endswith(whole) and name != f"{PREFIX}{signal}_ENDPOINT":
        variables.say(f"{name}={shown} should not end in {whole}: each signal's path is put behind it")
    return True


def _check_what_nobody_reads(variables: Variables) -> None:
    """Asked for, and not to be had."""
    for name in ("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE"):
        if variables.text(name):
            variables.say(f"{name} is not read by nvrx-launch; its options and the other OTEL_ variables are")
    pairs = [pair for pair in variables.text("OTEL_RESOURCE_ATTRIBUTES").split(",") if pair.strip()]
    for place, pair in enumerate(pairs, 1):
        if not pair.partition("=")[0].strip() or "=" not in pair:
            variables.say(
                f"OTEL_RESOURCE_ATTRIBUTES: entry {place} of {len(pairs)} is left out, it is no name=value"
            )


def span_exporter(config: TelemetryConfig) -> SpanExporter:
    """The exporter for spans; loads the SDK."""
    variables = Variables(os.environ)
    within_s = timeout_s(variables, "TRACES")
    if config.traces is Protocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter as OverGrpc,
        )

        pressed = _for_grpc(compression(variables, "TRACES"))
        return OverGrpc(endpoint=config.endpoint or None, timeout=within_s, compression=pressed)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - loads the SDK
        OTLPSpanExporter,
    )

    from nvrx_telemetry.own_authority import session_for  # noqa: PLC0415 - loads requests, as the exporter does

    return OTLPSpanExporter(
        endpoint=f"{config.endpoint}/v1/traces" if config.endpoint else None,
        timeout=within_s,
        session=session_for(variables, "TRACES"),
    )


def metric_exporter(config: TelemetryConfig) -> MetricExporter:
    """The exporter for metrics; loads the SDK."""
    variables = Variables(os.environ)
    within_s = timeout_s(variables, "METRICS")
    if config.metrics is Protocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (  # noqa: PLC0415 - an extra
            OTLPMetricExporter as OverGrpc,
        )

        pressed = _for_grpc(compression(variables, "METRICS"))
        return OverGrpc(endpoint=config.endpoint or None, timeout=within_s, compression=pressed)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415 - loads the SDK
        OTLPMetricExporter,
    )

    from nvrx_telemetry.own_authority import session_for  # noqa: PLC0415 - loads requests, as the exporter does

    return OTLPMetricExporter(
        endpoint=f"{config.endpoint}/v1/metrics" if config.endpoint else None,
        timeout=within_s,
        session=session_for(variables, "METRICS"),
    )


def _for_grpc(compression: str) -> grpc.Compression:
    """Given, not left to be read: the exporter does not start where its variable says `none`."""
    import grpc  # noqa: PLC0415 - loaded already by the exporter

    known = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
    return known.get(compression, grpc.Compression.NoCompression)


def without_secrets(endpoint: str) -> str:
    """The endpoint as it may be shown: it may have a user, and some collectors have a token in their path or query."""
    before, there, behind = endpoint.partition("://")
    scheme, rest = (before, behind) if there else ("", endpoint)
    end = next((place for place, sign in enumerate(rest) if sign in "/?#"), len(rest))
    host, tail = rest[:end].rpartition("@")[2], rest[end:]
    if "@" in tail and ":" in host and not host.rpartition(":")[2].isdigit():
        host = "…"  # no port, but the beginning of a password that has a slash
    shown = tail if tail.rstrip("/") in ("", "/v1/traces", "/v1/metrics") else f"{tail[0]}…"
    return f"{scheme}{there}{host}{shown}"
