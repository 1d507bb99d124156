"""How each attempt to send metrics went. Loads the SDK: for the thread that sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData


class HeardMetrics(MetricExporter):
    """An exporter for metrics whose successes and failures are told. Blocks as the exporter under it does."""

    def __init__(
        self, exporter: MetricExporter, worked: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        # The SDK's readers ask an exporter for these two, which its exporters have from variables.
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)  # noqa: SLF001 - as above
        self._exporter, self._worked, self._failed = exporter, worked, failed
        self.sending = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **more: Any
    ) -> MetricExportResult:
        """Send. `sending` is true meanwhile."""
        self.sending = True
        result = self._exporter.export(metrics_data, timeout_millis, **more)
        self.sending = False
        (self._worked if result is MetricExportResult.SUCCESS else self._failed)()
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """As the exporter does."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **more: Any) -> None:
        """As the exporter does."""
        self._exporter.shutdown(timeout_millis, **more)
