"""Where spans and metrics leave the agent: chosen, queued, and sent by threads that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio

from nvrx_async.aside import aside
from nvrx_launcher import tracing_anchors
from nvrx_launcher.tracing_anchors import Anchors
from nvrx_telemetry import semconv
from nvrx_telemetry.groups import is_on
from nvrx_telemetry.metrics import Metrics
from nvrx_telemetry.model import FinishedSpan, Value
from nvrx_telemetry.pipe import GIVE_UP_S, LAST_SEND_S, SpanPipe
from nvrx_telemetry.setup import TelemetryConfig, span_exporter, without_secrets
from nvrx_telemetry.trouble import Trouble
from nvrx_telemetry.turns import Turns

FLUSH_WITHIN_S = 0.3
"""So soon after a fault is told here its spans are on their way; agents have done their part of a restart by then."""


class Outlet:
    """See the module. Implements `tracing_observer.Told`; any thread may call what is no coroutine.

    `resource`: attributes of this process, which may still change before something is sent.
    """

    def __init__(
        self,
        config: TelemetryConfig,
        resource: Mapping[str, Value],
        turns: Turns,
        warn: Callable[[str], None],
    ) -> None:
        self._config = config
        self._turns = turns
        self._resource = resource
        self._warn = warn
        self._trouble = Trouble(without_secrets(config.endpoint) or "the collector", warn)
        self._metrics = Metrics(config, resource, self._trouble)
        self._pipe = self._make_pipe() if config.traces is not None else None
        self._measures = False
        self._anchors = Anchors()
        self._told_unfit = False
        self._dropped = 0

    def _make_pipe(self) -> SpanPipe:
        return SpanPipe(
            self._connect,
            delay_s=self._config.delay_s,
            queue=self._config.queue,
            batch=self._config.batch,
            worked=self._trouble.worked,
            failed=self._trouble.failed,
        )

    def _connect(self) -> Any:
        # In the thread that sends: the agent does not wait for these imports.
        with self._turns:
            from nvrx_async import __version__  # noqa: PLC0415 - beside the import below
            from nvrx_telemetry.sender import SdkSender, take_over_log  # noqa: PLC0415

            take_over_log(self._trouble.heard)
            return SdkSender(
                span_exporter(self._config), self._resource, __version__, self._turns, self._unfit
            )

    def _unfit(self, count: int, reason: str) -> None:
        """Spans that no exporter can encode; what is behind them goes on."""
        self.lost(count)
        if not self._told_unfit:
            self._told_unfit = True
            self._warn(f"telemetry: {count} spans are left out, they cannot be encoded: {reason}")

    def lost(self, spans: int) -> None:
        """So many spans were lost elsewhere."""
        self._metrics.add(semconv.METRIC_SPANS_DROPPED, spans)

    def takes(self, trace_id: int) -> bool:
        """Whether spans of this trace are wanted."""
        return self._pipe is not None and self._config.sampling.takes(trace_id)

    def emit(self, span: FinishedSpan) -> None:
        """Send a span if it is wanted."""
        self._put(span, yields=False)

    def emit_of_rank(self, span: FinishedSpan) -> None:
        """The same of what a rank told, which may be much: it leaves room for what its agent tells of a fault."""
        self._put(span, yields=True)

    def _put(self, span: FinishedSpan, *, yields: bool) -> None:
        if self._pipe is None or not self.takes(span.trace_id):
            return
        if is_on(span.name, self._config.groups):
            for anchor in self._anchors.before(span.trace_id):
                self._pipe.put(anchor)
            self._pipe.put(span, yields=yields)
        elif span.name in tracing_anchors.NAMES:
            for anchor in self._anchors.held(span):
                self._pipe.put(anchor)

    def flush(self) -> None:
        """Have what is known sent soon, though not in the way of the restart that has just begun."""
        if self._pipe is not None:
            self._pipe.flush(FLUSH_WITHIN_S)

    def measure(self, name: str, value: float, attributes: Mapping[str, Value]) -> None:
        """Add to a metric."""
        self._metrics.add(name, value, attributes)

    def gauges(self, name: str, measured: Iterable[tuple[float, Mapping[str, Value]]]) -> None:
        """What is now."""
        self._metrics.gauges(name, measured)

    def settle(self) -> None:
        """Give the SDK what was added since. Takes its time."""
        if self._pipe is not None and self._pipe.dropped > self._dropped:
            self._metrics.add(semconv.METRIC_SPANS_DROPPED, self._pipe.dropped - self._dropped)
            self._dropped = self._pipe.dropped
        self._metrics.settle()

    async def start_metrics(self) -> None:
        """Load the SDK and begin to send metrics, once."""
        wanted = self._config.metrics is not None or self._config.metrics_port is not None
        if self._measures or not wanted:
            return
        self._measures = True
        try:
            lost = await aside(self._start)
        except OSError:  # no thread is left for it: the next look tries again
            self._measures = False
            return
        if lost:
            self._warn(f"no metrics are sent: {lost}")

    def _start(self) -> str:
        with self._turns:
            return self._metrics.start()

    async def exposition(self) -> str:
        """All metrics in Prometheus' text format; none where no thread is left to ask for them."""
        try:
            return await aside(self._expose)
        except OSError:
            return ""

    def _expose(self) -> str:
        with self._turns:
            return self._metrics.exposition()

    def ends(self) -> None:
        """What fails from now on is lost."""
        self._trouble.ends()

    async def close(self) -> None:
        """Send what is left, for LAST_SEND_S + GIVE_UP_S at most."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._close_spans)
            tasks.start_soon(self._close_metrics)

    async def _close_spans(self) -> None:
        if self._pipe is None:
            return
        try:
            if not await aside(self._pipe.close):
                self._trouble.failed()
        except OSError as error:
            self._trouble.failed(str(error.strerror))

    async def _close_metrics(self) -> None:
        try:
            lost = await aside(self._metrics.close, LAST_SEND_S + GIVE_UP_S)
        except OSError as error:
            lost = str(error.strerror)
        if lost:
            self._warn(f"no metrics are sent: {lost}")
