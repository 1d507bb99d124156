"""From plain spans to OTLP, by the SDK's exporters. Loads the SDK: for the thread that sends."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from nvrx_telemetry.limits import limits
from nvrx_telemetry.model import FinishedSpan, Value
from nvrx_telemetry.traceparent import SpanName
from nvrx_telemetry.variables import Variables

SCOPE = "nvrx_telemetry"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_MOST_RESOURCES = 4096


class SdkSender:
    """Implements `nvrx_telemetry.pipe.Sender`. `resource`: the attributes of this process.

    `turns` is entered while spans are made and sent. `unfit` hears how many spans cannot be encoded, and why: an
    exporter refuses their whole batch, and would do so for ever.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        resource: Mapping[str, Value],
        version: str,
        turns: AbstractContextManager[None] | None = None,
        unfit: Callable[[int, str], None] | None = None,
    ) -> None:
        self._exporter = exporter
        self._unfit = unfit or _nobody_listens
        self._turns = turns or nullcontext()
        self._own = Resource.create(_texts(resource))
        self._scope = InstrumentationScope(SCOPE, version)
        self._limits = limits(Variables(os.environ))  # read here as the exporter reads its own
        self._resources: dict[tuple[tuple[str, Value], ...], Resource] = {}

    def send(self, spans: Sequence[FinishedSpan]) -> bool:
        """Send; blocks for as long as the exporter tries."""
        with self._turns:
            made = [self._readable(span) for span in spans]
            if self._export(made):
                return True
            reasons = (
                [reason for span in made if (reason := _unencodable([span]))] if _unencodable(made) else []
            )
            if not reasons:
                return False
            self._unfit(len(reasons), reasons[0])
            fit = [span for span in made if not _unencodable([span])]
            return not fit or self._export(fit)

    def _export(self, spans: Sequence[ReadableSpan]) -> bool:
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def abort(self) -> None:
        """End the exporter, also one that is sending."""
        self._exporter.shutdown()

    def _readable(self, span: FinishedSpan) -> ReadableSpan:
        above = SpanName(span.trace_id, span.parent_id) if span.parent_id else None
        return ReadableSpan(
            name=_text(span.name),
            context=_context(SpanName(span.trace_id, span.span_id)),
            parent=_context(above) if above else None,
            resource=self._own if span.resource is None else self._resource(span.resource),
            attributes=_texts(self._limits.cut(span.attributes)),
            links=[Link(_context(link.to), _texts(link.attributes)) for link in span.links],
            kind=SpanKind.INTERNAL,
            status=_status(span.error),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def _resource(self, attributes: Mapping[str, Value]) -> Resource:
        """One object for each process, by which the exporter groups spans."""
        key = tuple(sorted(attributes.items()))
        found = self._resources.get(key)
        if found is None:
            if len(self._resources) >= _MOST_RESOURCES:  # a job of many restarts: the dead are forgotten
                self._resources.clear()
            found = self._resources[key] = Resource.create(_texts(attributes))
        return found


class HeardLog(logging.Handler):
    """Takes what OpenTelemetry logs, so that a collector that is down does not fill the agent's output."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the message on."""
        self._heard(record.getMessage())


def take_over_log(heard: Callable[[str], None]) -> None:
    """Have all that OpenTelemetry logs in this process told to `heard`, and shown nowhere."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers = [HeardLog(heard)]
    logger.propagate = False


def _unencodable(spans: Sequence[ReadableSpan]) -> str:
    """Why OTLP's encoder, which is in all exporters, refuses them; empty if it does not."""
    try:
        encode_spans(spans).SerializePartialToString()
    except Exception as error:  # noqa: BLE001 - the exporters catch whatever it raises, too
        return f"{type(error).__name__}: {error}"
    return ""


def _nobody_listens(count: int, reason: str) -> None:
    del count, reason


def _status(error: str | None) -> Status:
    return Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, _text(error))


def _texts(attributes: Mapping[str, Value]) -> dict[str, Value]:
    return {
        _text(key): _text(value) if isinstance(value, str) else value for key, value in attributes.items()
    }


def _text(text: str) -> str:
    """As UTF-8 has it. An exception that names a file may hold half of a character (PEP 383).

    The exporter would refuse the whole batch, again and again, and all behind it would wait.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _context(name: SpanName) -> SpanContext:
    return SpanContext(name.trace_id, name.span_id, is_remote=False, trace_flags=_SAMPLED)
