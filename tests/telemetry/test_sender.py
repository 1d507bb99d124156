"""Spans on their way to an exporter: one that cannot be encoded keeps nothing behind it from being sent."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from nvrx_telemetry.model import FinishedSpan
from nvrx_telemetry.sender import SdkSender

BAD = -5
"""A moment that OTLP, which has unsigned ones of 64 bits, cannot carry."""


class Exporter(SpanExporter):
    """Refuses what cannot be encoded, and everything while the collector is away, as OTLP's exporters do."""

    def __init__(self) -> None:
        self.away = False
        self.sent: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            encode_spans(spans).SerializePartialToString()
        except ValueError:
            return SpanExportResult.FAILURE
        if self.away:
            return SpanExportResult.FAILURE
        self.sent += [span.name for span in spans]
        return SpanExportResult.SUCCESS


def span(name: str, start_ns: int = 3) -> FinishedSpan:
    return FinishedSpan(name, 1, 2, None, start_ns, 4)


def made() -> tuple[SdkSender, Exporter, list[tuple[int, str]]]:
    unfit: list[tuple[int, str]] = []
    exporter = Exporter()
    sender = SdkSender(exporter, {}, "1", unfit=lambda count, reason: unfit.append((count, reason)))
    return sender, exporter, unfit


def test_what_cannot_be_encoded_is_left_out_and_told_of() -> None:
    sender, exporter, unfit = made()
    assert sender.send([span("a"), span("bad", BAD), span("b"), span("worse", BAD)])
    assert exporter.sent == ["a", "b"]
    ((count, reason),) = unfit
    assert count == 2
    assert "ValueError" in reason


def test_a_batch_of_nothing_else_is_over() -> None:
    sender, exporter, unfit = made()
    assert sender.send([span("bad", BAD)])
    assert (exporter.sent, len(unfit)) == ([], 1)


def test_a_collector_that_is_away_costs_no_span() -> None:
    sender, exporter, unfit = made()
    exporter.away = True
    assert not sender.send([span("a")])
    assert unfit == []
    exporter.away = False
    assert sender.send([span("a")])
    assert exporter.sent == ["a"]
