"""Spans in a rank: nothing when off; safe in the spool whatever ends the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import nvrx_telemetry
from nvrx_telemetry import semconv, spans, spool, spool_line
from nvrx_telemetry.traceparent import SpanName, is_sampled, parsed, spelled

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join(str(ROOT / part) for part in ("", "telemetry"))
ABOVE = SpanName(0xABC, 0xDEF)


@pytest.fixture
def reader() -> Iterator[spool.SpoolReader]:
    made = spool.SpoolReader(spool.make("test"), {semconv.DL_RANK: 3})
    yield made
    made.close()


def rank(
    reader: spool.SpoolReader | None, program: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as a rank; without a reader telemetry is off."""
    on = {}
    if reader is not None:
        on = {
            "TRACEPARENT": spelled(ABOVE),
            spool_line.VARIABLE: reader.path,
            spool_line.CLOCK_VARIABLE: "1000",
        }
    return subprocess.run(
        [sys.executable, "-c", "import nvrx_telemetry, os, sys, signal\n" + textwrap.dedent(program)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PATH, **on, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_off_loads_nothing_and_reads_no_clock() -> None:
    told = rank(
        None,
        """
        import time
        def no_clock(*_):
            raise AssertionError("a clock was read")
        for name in ("time", "time_ns", "monotonic", "monotonic_ns", "clock_gettime", "clock_gettime_ns"):
            setattr(time, name, no_clock)
        with nvrx_telemetry.span("anything", {"a": 1}) as span:
            span.set("b", 2)
        assert not [name for name in sys.modules if name.startswith("opentelemetry")], "OpenTelemetry was loaded"
        """,
    )
    assert told.returncode == 0, told.stderr


def test_on_loads_no_sdk_and_no_grpc(reader: spool.SpoolReader) -> None:
    told = rank(
        reader,
        """
        with nvrx_telemetry.span("anything"):
            pass
        assert not [name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "grpc")]
        """,
    )
    assert told.returncode == 0, told.stderr
    assert [span.name for span in reader.drain()] == ["anything"]


def test_spans_nest_and_say_what_went_wrong(reader: spool.SpoolReader) -> None:
    told = rank(
        reader,
        """
        try:
            with nvrx_telemetry.span("outer", {"path": "/x", "step": 7, "odd": object}) as outer:
                outer.set("more", True)
                with nvrx_telemetry.span("inner"):
                    raise ValueError("the shards are gone")
        except ValueError:
            print("went on")
        """,
    )
    assert told.stdout == "went on\n", told.stderr
    inner, outer = reader.drain()
    assert (inner.name, inner.parent_id, outer.parent_id) == ("inner", outer.span_id, ABOVE.span_id)
    assert {inner.trace_id, outer.trace_id} == {ABOVE.trace_id}
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert inner.error == outer.error == "ValueError: the shards are gone"
    assert outer.attributes == {"path": "/x", "step": 7, "odd": "<class 'object'>", "more": True}
    assert outer.resource == {semconv.DL_RANK: 3}


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(0)", 0),
    ],
    ids=["sigterm", "sigkill", "_exit"],
)
def test_a_span_that_was_left_is_safe(reader: spool.SpoolReader, end: str, code: int) -> None:
    told = rank(reader, f"with nvrx_telemetry.span('parent'): pass\n{end}")
    assert told.returncode == code, told.stderr
    assert [span.name for span in reader.drain()] == ["parent"]


def test_spans_of_forked_children_are_safe(reader: spool.SpoolReader) -> None:
    told = rank(
        reader,
        """
        with nvrx_telemetry.span("parent"):
            children = []
            for number in range(4):
                pid = os.fork()
                if pid == 0:
                    for _ in range(50):
                        with nvrx_telemetry.span("child", {"number": number}):
                            pass
                    os._exit(0)
                children.append(pid)
            for pid in children:
                os.waitpid(pid, 0)
        """,
    )
    assert told.returncode == 0, told.stderr
    found = reader.drain()
    (parent,) = [span for span in found if span.name == "parent"]
    children = [span for span in found if span.name == "child"]
    assert len(children) == 200
    assert len({span.span_id for span in found}) == 201
    assert {span.parent_id for span in children} == {parent.span_id}
    assert not reader.abandoned(parent.end_ns + 1)


def test_a_span_that_never_ends_leaves_no_orphans(reader: spool.SpoolReader) -> None:
    told = rank(
        reader,
        """
        with nvrx_telemetry.span("never ended"):
            with nvrx_telemetry.span("between"):
                with nvrx_telemetry.span("ended"):
                    pass
                os._exit(1)
        """,
    )
    assert told.returncode == 1, told.stderr
    (ended,) = reader.drain()
    left = {span.name: span for span in reader.abandoned(ended.end_ns + 5)}
    assert set(left) == {"never ended", "between"}
    assert ended.parent_id == left["between"].span_id
    assert left["between"].parent_id == left["never ended"].span_id
    assert left["never ended"].parent_id == ABOVE.span_id
    assert all(span.error and span.end_ns == ended.end_ns + 5 for span in left.values())


def test_groups_choose(reader: spool.SpoolReader) -> None:
    program = f"""
        from nvrx_telemetry import semconv
        for name in ({semconv.CKPT_WRITE!r}, {semconv.CKPT_SCHEDULE!r}, "my.own"):
            with nvrx_telemetry.span(name):
                pass
        with nvrx_telemetry.span("tagged", group=semconv.SPAN_GROUP_CKPT_PHASES):
            pass
        """
    rank(reader, program)
    assert [span.name for span in reader.drain()] == [semconv.CKPT_SCHEDULE, "my.own"]
    rank(reader, program, NVRX_SPAN_GROUPS="per_step")
    names = [semconv.CKPT_WRITE, semconv.CKPT_SCHEDULE, "my.own", "tagged"]
    assert [span.name for span in reader.drain()] == names
    rank(reader, program, NVRX_SPAN_GROUPS=f"{semconv.SPAN_GROUP_FT},none")
    assert [span.name for span in reader.drain()] == ["my.own"]


def test_the_trainings_own_provider_gets_the_spans(reader: spool.SpoolReader) -> None:
    told = rank(
        reader,
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(kept))
        trace.set_tracer_provider(provider)
        with nvrx_telemetry.span("outer") as outer:
            outer.set("a", 1)
            with nvrx_telemetry.span("inner"):
                pass
        inner, outer = kept.get_finished_spans()
        print(inner.parent.span_id == outer.context.span_id, hex(outer.parent.span_id), dict(outer.attributes))
        """,
    )
    assert told.stdout == "True 0xdef {'a': 1}\n", told.stderr
    assert not reader.drain()


def test_a_spool_takes_no_more_than_its_limit(
    reader: spool.SpoolReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_line, "LIMIT_BYTES", 64 << 10)
    descriptor = os.open(reader.path, os.O_WRONLY | os.O_APPEND)
    recorder = spans.Recorder(descriptor, 1, ABOVE)
    for number in range(1000):
        recorder.record("x", SpanName(1, number + 1), ABOVE, (1, 2), {"text": "x" * 200}, None)
    os.close(descriptor)
    assert 100 < len(reader.drain()) < 400


def test_a_span_larger_than_a_spool_leaves_those_after_it(reader: spool.SpoolReader) -> None:
    told = rank(
        reader,
        f"""
        with nvrx_telemetry.span("huge", {{"a": "x" * {spool_line.LIMIT_BYTES}}}):
            pass
        with nvrx_telemetry.span("after"):
            pass
        """,
    )
    assert told.returncode == 0, told.stderr
    assert [span.name for span in reader.drain()] == ["after"]
    assert reader.lost == 1


def test_a_span_that_cannot_be_spelled_changes_nothing(reader: spool.SpoolReader) -> None:
    told = rank(
        reader,
        """
        class Broken:
            def __str__(self):
                raise RuntimeError("CUDA error")
        circle = []
        circle.append(circle)
        for value in (Broken(), circle, {("a",): 1}):
            with nvrx_telemetry.span("lost", {"a": value}):
                pass
        with nvrx_telemetry.span("after"):
            pass
        """,
    )
    assert told.returncode == 0, told.stderr
    assert [span.name for span in reader.drain()] == ["after"]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[" * 100_000,
        b"[]",
        b"{}",
        json.dumps({"name": "x", "trace": "1", "span": "2"}).encode(),
        json.dumps(
            {"name": 1, "trace": "0" * 32, "span": "1" * 16, "parent": "", "start_ns": 1, "end_ns": 2}
        ).encode(),
        b'{"name":"x","trace":"' + b"a" * 32 + b'","span":"' + b"b" * 16 + b'","parent":"zz","start_ns":1,'
        b'"end_ns":2,"attributes":{},"error":null}',
    ],
)
def test_what_a_rank_writes_cannot_hurt(line: bytes) -> None:
    assert spool.read(line + b"\n", {}) == ([], 0)


def test_what_otlp_cannot_carry_becomes_text() -> None:
    line = (
        b'{"name":"\\ud800","trace":"'
        + b"a" * 32
        + b'","span":"'
        + b"b" * 16
        + b'","parent":"","start_ns":5,'
        b'"end_ns":2,"attributes":{"big":123456789012345678901234567890,"list":[1]},"error":null}'
    )
    (((span, still_open),), _) = spool.read(line, {})
    assert not still_open
    assert (span.name, span.end_ns) == ("?", 5)
    assert span.attributes == {"big": "123456789012345678901234567890", "list": "[1]"}


def test_a_span_outside_of_nvrx_launch_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(spool_line.VARIABLE, raising=False)
    spans._recorder.cache_clear()
    assert nvrx_telemetry.span("x") is spans.NOTHING
    spans._recorder.cache_clear()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"00-{'0' * 30}ab-{'0' * 14}cd-01", (0xAB, 0xCD)),
        (f"cc-{'0' * 30}ab-{'0' * 14}cd-01-what-comes-later", (0xAB, 0xCD)),
        (f"ff-{'0' * 30}ab-{'0' * 14}cd-01", None),
        (f"00-{'0' * 32}-{'0' * 14}cd-01", None),
        (f"00-{'0' * 30}ab-{'0' * 16}-01", None),
        (f"00-{'0' * 30}AB-{'0' * 14}cd-01", None),
        (f"00-{'0' * 28}_1ab-{'0' * 14}cd-01", None),
        (f" 0-{'0' * 30}ab-{'0' * 14}cd-01", None),
        (f"00-{'0' * 30}ab-{'0' * 14}cd-1", None),
        (f"00-{'0' * 30}ab-{'0' * 14}cd", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_a_traceparent_is_read_as_w3c_writes_it(text: object, named: tuple[int, int] | None) -> None:
    found = parsed(text)
    assert found == named
    if found is not None:
        assert (found.trace_id, found.span_id) == named
        assert is_sampled(str(text))


def test_a_rank_loads_little_for_its_spans(reader: spool.SpoolReader) -> None:
    """Every restart waits for it: no data classes, no expressions, nothing that sends."""
    told = rank(
        reader,
        """
        before = set(sys.modules)
        with nvrx_telemetry.span("x"):
            pass
        print(*sorted(n for n in set(sys.modules) - before if n.startswith("nvrx") or n == "dataclasses"))
        """,
    )
    assert told.stdout.split() == [
        f"nvrx_telemetry.{name}" for name in ("groups", "semconv", "spans", "spool_line", "traceparent")
    ], told.stderr
