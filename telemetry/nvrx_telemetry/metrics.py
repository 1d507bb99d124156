"""The agent's metrics: instruments of the SDK, sent by OTLP or read by Prometheus.

Whoever measures calls `Metrics.add` or `Metrics.gauges`, before the SDK is loaded too. `start` loads it and blocks,
so it belongs into a thread, and `settle`, which takes its time, too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from nvrx_telemetry import semconv
from nvrx_telemetry.model import Value
from nvrx_telemetry.setup import TelemetryConfig, metric_exporter
from nvrx_telemetry.trouble import Trouble

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter
    from opentelemetry.sdk.metrics.view import View

    from nvrx_telemetry.metric_sender import HeardMetrics

SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
)
"""Bounds of all histograms, which are of times."""

COUNTERS = {
    semconv.METRIC_RESTARTS: ("{restart}", "Rounds that ended in another try."),
    semconv.METRIC_LOG_SPOOLED: ("By", "Output of ranks written to files."),
    semconv.METRIC_LOG_DROPPED: ("By", "Output of ranks that no disk took."),
    semconv.METRIC_SPANS_DROPPED: ("{span}", "Spans that could not be delivered."),
}
HISTOGRAMS = {
    semconv.METRIC_DETECTION: "From a rank's end or last sign of life until its node knew.",
    semconv.METRIC_NOTIFICATION: "From an interrupt until another node saw it.",
    semconv.METRIC_RECOVERY: "From a fault until this node's ranks train again.",
    semconv.METRIC_ETCD: "Requests to etcd.",
}
GAUGES = {
    semconv.METRIC_GOODPUT: ("1", "Part of the time since registration in which ranks trained."),
    semconv.METRIC_BEAT_AGE: ("s", "Time since the last report of the most silent rank."),
    semconv.METRIC_RANKS: ("{rank}", "Ranks of this node by state."),
    semconv.METRIC_ROUND: ("{round}", "Number of the round."),
}
_MOST_WAITING = 10_000

Attributes: TypeAlias = Mapping[str, Value]
Measured: TypeAlias = tuple[float, Attributes]


class Metrics:
    """See the module. Safe to use from several threads."""

    def __init__(self, config: TelemetryConfig, resource: Attributes, trouble: Trouble | None = None) -> None:
        self._config = config
        self._resource = resource
        self._trouble = trouble or Trouble("", _nobody_listens)
        self._loading = threading.Lock()
        self._settling = threading.Lock()
        self._waiting: deque[tuple[str, float, Attributes]] = deque()
        self._instruments: dict[str, Counter | Histogram] = {}
        self._gauges: dict[str, list[Measured]] = {}
        self._tried = False
        self._provider: MeterProvider | None = None
        self._reader: InMemoryMetricReader | None = None
        self._sender: HeardMetrics | None = None

    def add(self, name: str, value: float, attributes: Attributes | None = None) -> None:
        """Add to a counter, or note a value for a histogram. Costs an append: `settle` does the rest."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((name, value, attributes or {}))

    def settle(self) -> None:
        """Give the SDK what was added since, once it is loaded."""
        with self._settling:  # of two at once, neither returns before all is there
            while self._instruments and self._waiting:
                self._note(*self._waiting.popleft())

    def gauges(self, name: str, measured: Iterable[Measured]) -> None:
        """What is now; it stands until the next call."""
        self._gauges[name] = list(measured)

    def start(self) -> str:
        """Load the SDK and begin to send, once. Blocks for as long as the imports take.

        Returns why that failed, "" else; a second call does not try again, and has nothing new to say.
        """
        with self._loading:
            if self._tried:
                return ""
            self._tried = True
            try:
                self._load()
            except Exception as error:  # noqa: BLE001 - a helper's outermost frame: foreign code, read from variables
                return f"{type(error).__name__}: {error}"
            return ""

    def _load(self) -> None:
        from opentelemetry.sdk.metrics import (  # noqa: PLC0415 - the SDK is for those who asked
            AlwaysOffExemplarFilter,
            MeterProvider,
        )
        from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - as above
            InMemoryMetricReader,
            MetricReader,
            PeriodicExportingMetricReader,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - as above

        readers: list[MetricReader] = []
        if self._config.metrics is not None:
            interval_ms = self._config.interval_s * 1000
            readers.append(PeriodicExportingMetricReader(self._exporter(), interval_ms))
        if self._config.metrics_port is not None:
            self._reader = InMemoryMetricReader()
            readers.append(self._reader)
        provider = MeterProvider(
            readers,
            Resource.create(dict(self._resource)),
            shutdown_on_exit=False,
            views=_views(),
            # What is measured belongs to no span. And a variable that asks for an unknown filter ends no metrics.
            exemplar_filter=AlwaysOffExemplarFilter(),
        )
        made = self._make(provider.get_meter("nvrx_telemetry"))
        self._provider, self._instruments = provider, made
        self.settle()

    def _exporter(self) -> MetricExporter:
        from nvrx_telemetry.metric_sender import HeardMetrics  # noqa: PLC0415 - loads the SDK
        from nvrx_telemetry.sender import take_over_log  # noqa: PLC0415 - as above

        take_over_log(self._trouble.heard)
        trouble = self._trouble
        self._sender = HeardMetrics(metric_exporter(self._config), trouble.worked, trouble.failed)
        return self._sender

    def exposition(self) -> str:
        """All metrics in Prometheus' text format; empty before `start`."""
        from nvrx_telemetry.prometheus import exposition  # noqa: PLC0415 - only where somebody scrapes

        self.settle()
        data = self._reader.get_metrics_data() if self._reader is not None else None
        return exposition(data) if data is not None else ""

    def close(self, within_s: float) -> str:
        """Send what there is, and end. Blocks for `within_s` at most. Returns why that failed, if it is known."""
        told: list[str] = []
        # The exporter under it waits for its collector as long as it likes.
        ending = threading.Thread(
            target=lambda: told.append(self._end(within_s)), name="nvrx-metrics-end", daemon=True
        )
        ending.start()
        ending.join(within_s)
        if ending.is_alive() or (self._sender is not None and self._sender.sending):
            self._trouble.failed()
        return told[0] if told else ""

    def _end(self, within_s: float) -> str:
        if self._config.metrics is not None and (self._waiting or self._gauges):
            lost = self.start()  # a job that is over before the SDK was loaded has numbers too
            if lost:
                return lost
        with self._loading:
            provider = self._provider
        try:
            if provider is not None:
                self.settle()
                provider.shutdown(within_s * 1000)
        except Exception as error:  # noqa: BLE001 - the SDK raises no other; a helper's outermost frame
            return f"{type(error).__name__}: {error}"
        return ""

    def _make(self, meter: Meter) -> dict[str, Counter | Histogram]:
        made: dict[str, Counter | Histogram] = {}
        for name, (unit, text) in COUNTERS.items():
            made[name] = meter.create_counter(name, unit, text)
        for name, text in HISTOGRAMS.items():
            made[name] = meter.create_histogram(name, "s", text)
        for name, (unit, text) in GAUGES.items():
            meter.create_observable_gauge(name, [_Told(self._gauges, name)], unit, text)
        return made

    def _note(self, name: str, value: float, attributes: Attributes) -> None:
        from opentelemetry.metrics import Histogram  # noqa: PLC0415 - loaded by `start`

        instrument = self._instruments[name]
        if isinstance(instrument, Histogram):
            instrument.record(value, dict(attributes))
        else:
            instrument.add(value, dict(attributes))


class _Told:
    """Answers an observable gauge with what was told last."""

    def __init__(self, told: Mapping[str, list[Measured]], name: str) -> None:
        self._told, self._name = told, name

    def __call__(self, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - loaded by `start`

        del options
        return [Observation(value, dict(attributes)) for value, attributes in self._told.get(self._name, [])]


def _nobody_listens(line: str) -> None:
    del line


def _views() -> list[View]:
    from opentelemetry.sdk.metrics.view import (  # noqa: PLC0415 - loaded by `start`
        ExplicitBucketHistogramAggregation,
        View,
    )

    return [
        View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(SECONDS))
        for name in HISTOGRAMS
    ]
