"""Metrics in Prometheus' text format 0.0.4, named as OpenTelemetry's compatibility document says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_UNITS = {"s": "seconds", "By": "bytes", "1": "ratio"}
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")


def exposition(data: MetricsData) -> str:
    """All metrics of all resources; the resource itself stands in `target_info`."""
    lines: list[str] = []
    for of_resource in data.resource_metrics:
        info = {str(key): value for key, value in of_resource.resource.attributes.items()}
        lines += [
            "# HELP target_info The process that these metrics are of.",
            "# TYPE target_info gauge",
            f"target_info{_labels(info)} 1",
        ]
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                lines.extend(_metric(metric))
    return "\n".join([*lines, ""])


def prometheus_name(name: str, unit: str, *, counter: bool) -> str:
    """A metric's name: unit and `_total` behind it."""
    spelled = _NO_NAME.sub("_", name)
    suffix = "" if counter and unit == "1" else _UNITS.get(unit, "")
    if suffix and not spelled.endswith(suffix):
        spelled = f"{spelled}_{suffix}"
    return f"{spelled}_total" if counter else spelled


def _metric(metric: Metric) -> Iterator[str]:
    from opentelemetry.sdk.metrics.export import Histogram, Sum  # noqa: PLC0415 - loaded by whoever has data

    data = metric.data
    counter = isinstance(data, Sum) and data.is_monotonic
    name = prometheus_name(metric.name, metric.unit or "", counter=counter)
    kind = "counter" if counter else "histogram" if isinstance(data, Histogram) else "gauge"
    yield f"# HELP {name} {metric.description or ''}"
    yield f"# TYPE {name} {kind}"
    for point in data.data_points:
        attributes = dict(point.attributes or {})
        if isinstance(data, Histogram):
            yield from _buckets(name, attributes, point)
        else:
            yield f"{name}{_labels(attributes)} {_number(getattr(point, 'value', 0))}"


def _buckets(name: str, attributes: Mapping[str, Any], point: Any) -> Iterator[str]:
    below = 0
    for bound, count in zip((*point.explicit_bounds, float("inf")), point.bucket_counts, strict=True):
        below += count
        yield f"{name}_bucket{_labels({**attributes, 'le': _number(bound)})} {below}"
    yield f"{name}_sum{_labels(attributes)} {_number(point.sum)}"
    yield f"{name}_count{_labels(attributes)} {point.count}"


def _labels(attributes: Mapping[str, Any]) -> str:
    if not attributes:
        return ""
    pairs = (
        f'{_NO_NAME.sub("_", key)}="{_escaped(_text(value))}"' for key, value in sorted(attributes.items())
    )
    return "{" + ",".join(pairs) + "}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(float(value)) if isinstance(value, float) else str(value)
