"""The way to the collector: nobody waits for it, little is lost, one line tells, and the end is bounded."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from socket import AF_INET, SOCK_STREAM, socket

import pytest
from support.otlp_receiver import Receiver

from nvrx_launcher.tracing import LAST_CALLS_S, LAST_LOOK_S
from nvrx_telemetry.model import FinishedSpan, SpanLink
from nvrx_telemetry.pipe import GIVE_UP_S, LAST_SEND_S, SpanPipe
from nvrx_telemetry.sender import SdkSender, take_over_log
from nvrx_telemetry.setup import span_exporter, telemetry_config
from nvrx_telemetry.traceparent import SpanName
from nvrx_telemetry.trouble import Trouble

END_S = 2.0
"""What the end of an agent may cost at most."""


def test_the_bound_is_two_seconds() -> None:
    assert LAST_LOOK_S + LAST_CALLS_S + LAST_SEND_S + GIVE_UP_S <= END_S


def span(number: int) -> FinishedSpan:
    return FinishedSpan(f"span {number}", 1, number + 1, None, 10, 20, {"n": number})


class Kept:
    """A sender that keeps what it was given, and refuses while `refuses`."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.refuses = False
        self.tried = threading.Semaphore(0)

    def send(self, spans: Sequence[FinishedSpan]) -> bool:
        if not self.refuses:
            self.batches.append([one.name for one in spans])
        self.tried.release()
        return not self.refuses

    def abort(self) -> None:
        pass

    @property
    def names(self) -> list[str]:
        return [name for batch in self.batches for name in batch]


def pipe(sender, told: list[str], **changes) -> SpanPipe:
    trouble = Trouble("the test", told.append)
    settings = {"delay_s": 60.0, "queue": 100, "batch": 10} | changes
    return SpanPipe(lambda: sender, worked=trouble.worked, failed=trouble.failed, **settings)


def test_a_flush_sends_at_once_and_in_order() -> None:
    sender, told = Kept(), []
    through = pipe(sender, told)
    for number in range(7):
        through.put(span(number))
    through.flush()
    assert sender.tried.acquire(timeout=10)
    assert sender.names == [f"span {n}" for n in range(7)]
    assert through.close()
    assert not told


def test_a_flush_of_nothing_does_not_hurry_the_next_span() -> None:
    """It would go apart from those that come with it, and wake the thread while a restart is under way."""
    sender, told = Kept(), []
    through = pipe(sender, told)
    through.flush()
    assert through._flush_at_s == math.inf
    for number in range(10):
        through.put(span(number))
    assert sender.tried.acquire(timeout=10)
    assert through.close()
    assert sender.batches == [[f"span {n}" for n in range(10)]]


def test_what_yields_leaves_room_for_the_rest() -> None:
    """A rank that tells much must not push out what its agent tells of a fault."""
    sender, told = Thinking(), []
    through = pipe(sender, told, queue=24)
    through.put(span(0))
    through.flush()
    assert sender.entered.wait(10)
    through.put(span(1))
    for number in range(100, 200):
        through.put(span(number), yields=True)
    for number in range(2, 5):
        through.put(span(number))
    assert through.dropped == 80
    assert [one.span_id - 1 for one in through._queue] == [1, *range(100, 120), 2, 3, 4]
    sender.answer.set()
    assert through.close()


def test_nobody_waits_while_a_collector_thinks() -> None:
    """All that an agent asks of the pipe is done before the answer comes, however much it is."""
    sender, told = Thinking(), []
    through = pipe(sender, told, queue=1000)
    through.put(span(0))
    through.flush()
    assert sender.entered.wait(10)
    for number in range(1, 5000):
        through.put(span(number))
        through.flush(0.0 if number % 2 else 0.5)
    assert sender.thinks, "all this went on while the collector had not answered"
    assert through.dropped == 4999 - 1000
    sender.answer.set()
    assert through.close()
    assert not told


def test_a_fault_while_a_collector_refuses_is_sent_in_time_too() -> None:
    """The next attempt is a minute away, and a flush brings it near."""
    sender, told = Kept(), []
    sender.refuses = True
    through = pipe(sender, told)
    through.put(span(0))
    through.flush()
    assert sender.tried.acquire(timeout=10)
    sender.refuses = False
    through.put(span(1))
    through.flush(0.2)
    assert sender.tried.acquire(timeout=10)
    assert sender.names == ["span 0", "span 1"]
    assert through.close()


class Thinking(Kept):
    """A sender whose first answer takes as long as a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.answer = threading.Event(), threading.Event()
        self.thinks = False

    def send(self, spans: Sequence[FinishedSpan]) -> bool:
        if not self.entered.is_set():
            self.thinks = True
            self.entered.set()
            assert self.answer.wait(30)
            self.thinks = False
        return super().send(spans)


def test_what_a_collector_refuses_is_sent_again_and_told_once() -> None:
    sender, told = Kept(), []
    sender.refuses = True
    through = pipe(sender, told, delay_s=0.01)
    through.put(span(0))
    for _ in range(3):
        assert sender.tried.acquire(timeout=10)
    through.put(span(1))
    sender.refuses = False
    assert through.close()
    assert sender.names == ["span 0", "span 1"]
    assert len(told) == 1
    assert "the job goes on" in told[0]


def test_a_full_queue_loses_the_oldest_and_counts() -> None:
    sender, told = Kept(), []
    through = pipe(sender, told, queue=20, batch=1000)
    for number in range(50):
        through.put(span(number))
    assert through.dropped == 30
    assert through.close()
    assert sender.names == [f"span {n}" for n in range(30, 50)]


def test_a_sender_that_cannot_be_made_is_told() -> None:
    def broken():
        raise RuntimeError("no such exporter")

    told: list[str] = []
    trouble = Trouble("the test", told.append)
    through = SpanPipe(broken, delay_s=0.01, queue=10, batch=5, worked=trouble.worked, failed=trouble.failed)
    through.put(span(0))
    through.close()
    assert "no such exporter" in told[0]


def real(endpoint: str, protocol: str, told: list[str]) -> SpanPipe:
    config, notices = telemetry_config({"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}, endpoint, None)
    assert config is not None
    assert not notices
    trouble = Trouble(endpoint, told.append)

    def connect() -> SdkSender:
        take_over_log(trouble.heard)
        return SdkSender(span_exporter(config), {"service.name": "test"}, "1")

    return SpanPipe(
        connect, delay_s=0.05, queue=1000, batch=100, worked=trouble.worked, failed=trouble.failed
    )


def test_text_that_is_no_utf_8_holds_up_no_span(collector: Receiver) -> None:
    """As of an exception that names a file whose name is none: its batch would be refused for ever."""
    told: list[str] = []
    through = real(collector.endpoint, "http/protobuf", told)
    bad = "no \udcff.bin"
    about = {bad: bad}
    link = SpanLink(SpanName(1, 2), about)
    through.put(FinishedSpan(bad, 1, 9, None, 10, 20, about, (link,), bad, about))
    through.put(span(1))
    assert through.close()
    assert not told
    odd, plain = collector.spans
    good = "no ?.bin"
    assert (odd.name, odd.error, odd.attributes, odd.links[0][2]) == (good, good, {good: good}, {good: good})
    assert odd.resource[good] == good
    assert plain.name == "span 1"


def closed_port() -> str:
    with closing(socket(AF_INET, SOCK_STREAM)) as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"


def ends_in_time(through: SpanPipe) -> float:
    began_s = time.monotonic()
    through.close()
    return time.monotonic() - began_s


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_nobody_listens(protocol: str, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    through = real(closed_port(), protocol, told)
    for number in range(500):
        through.put(span(number))
    assert ends_in_time(through) < END_S + 1, "V22: OpenTelemetry's own takes 7 s"
    assert capfd.readouterr().err == ""
    assert len(told) <= 1


@pytest.mark.parametrize("mode", ["slow", "refuses"])
@pytest.mark.parametrize("kind", ["collector", "grpc_collector"])
def test_a_collector_that_answers_badly(
    request: pytest.FixtureRequest, kind: str, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver: Receiver = request.getfixturevalue(kind)
    receiver.mode = mode
    told: list[str] = []
    through = real(receiver.endpoint, "grpc" if kind == "grpc_collector" else "http/protobuf", told)
    through.put(span(0))
    assert ends_in_time(through) < END_S + 1
    receiver.closing.set()
    assert capfd.readouterr().err == ""
    assert len(told) <= 1


@pytest.mark.parametrize("kind", ["collector", "grpc_collector"])
def test_headers_resource_and_all_parts_of_a_span_arrive(
    request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver: Receiver = request.getfixturevalue(kind)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a%20b")
    through = real(receiver.endpoint, "grpc" if kind == "grpc_collector" else "http/protobuf", [])
    through.put(FinishedSpan("x", 7, 8, 9, 10, 20, {"i": 1, "f": 0.5, "b": True, "s": "t"}, error="no"))
    through.put(FinishedSpan("y", 7, 9, None, 10, 20, resource={"nv.dl.rank": 4}))
    assert through.close()
    by_name = {got.name: got for got in receiver.spans}
    got = by_name["x"]
    assert (got.trace, got.span, got.parent) == (f"{7:032x}", f"{8:016x}", f"{9:016x}")
    assert (got.start_ns, got.end_ns, got.error) == (10, 20, "no")
    assert got.attributes == {"i": 1, "f": 0.5, "b": True, "s": "t"}
    assert (got.resource["service.name"], got.resource["team"]) == ("test", "a b")
    assert by_name["y"].resource["nv.dl.rank"] == 4
    assert {name.lower(): value for name, value in receiver.headers[0].items()}["x-token"] == "secret"
