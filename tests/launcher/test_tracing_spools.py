"""The agent's side of spools: all is read, in order, by a thread that nobody waits for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_launcher import tracing_spools
from nvrx_launcher.tracing_spools import RankSpools
from nvrx_telemetry import spool_line
from nvrx_telemetry.model import FinishedSpan
from nvrx_telemetry.traceparent import SpanName

BOUND_S = 30.0


class Heard:
    """What came out of the spools, and by which thread."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []
        self.failures: list[Exception] = []
        self.threads: set[int] = set()
        self.hold = threading.Event()
        self.hold.set()

    def emit(self, span: FinishedSpan) -> None:
        assert self.hold.wait(BOUND_S)
        self.threads.add(threading.get_ident())
        if span.name == "broken":
            raise ValueError(span.name)
        self.spans.append(span)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def spools(heard: Heard) -> Iterator[RankSpools]:
    made = RankSpools(heard.emit, lambda: 99, heard.failures.append)
    yield made
    heard.hold.set()
    assert made.close(BOUND_S)
    assert "nvrx-spools" not in {thread.name for thread in threading.enumerate()}


def told(path: str, *names: str, still_open: bool = False) -> None:
    """A rank writes spans."""
    with Path(path).open("ab") as file:
        for number, name in enumerate(names, 1):
            me = SpanName(1, number)
            file.write(spool_line.line(name, me, 0, (10, 20), {}, None, still_open=still_open))


def test_what_is_left_is_read_before_the_end(heard: Heard, spools: RankSpools) -> None:
    path = spools.open(0, {"rank": 0})
    told(path, *map(str, range(2000)))
    assert spools.close(BOUND_S)
    assert heard.names == [str(number) for number in range(2000)]
    assert heard.threads.isdisjoint({threading.get_ident()}), "read where others work"
    assert not Path(path).exists(), "the memory is given back"


def test_nobody_waits_for_what_is_read(heard: Heard, spools: RankSpools) -> None:
    heard.hold.clear()
    path = spools.open(0, {})
    told(path, "a")
    spools.look()
    spools.ended(0)
    spools.retire()
    assert heard.spans == []
    assert not spools.close(0.05), "an end is bounded too"
    heard.hold.set()


def test_rounds_come_in_order_each_with_its_own_resource(heard: Heard, spools: RankSpools) -> None:
    heard.hold.clear()
    for number in range(3):
        spools.retire()
        told(spools.open(0, {"round": number}), f"first {number}")
        spools.look()
        told(spools._readers[0].path, f"last {number}")
        spools.ended(0)
    heard.hold.set()
    assert spools.close(BOUND_S)
    assert heard.names == [f"{which} {number}" for number in range(3) for which in ("first", "last")]
    assert [span.resource for span in heard.spans] == [{"round": n} for n in range(3) for _ in range(2)]


def test_a_span_that_never_ended_is_told_when_its_round_is_over(heard: Heard, spools: RankSpools) -> None:
    path = spools.open(0, {})
    told(path, "open", still_open=True)
    spools.ended(0)
    spools.retire()
    spools.open(0, {})
    assert spools.close(BOUND_S)
    assert [(span.name, span.end_ns, bool(span.error)) for span in heard.spans] == [("open", 99, True)]


def test_what_breaks_is_told_and_costs_no_descriptor(heard: Heard, spools: RankSpools) -> None:
    paths = [spools.open(local_rank, {}) for local_rank in range(2)]
    told(paths[0], "broken")
    told(paths[1], "whole")
    assert spools.close(BOUND_S)
    assert [str(failure) for failure in heard.failures] == ["broken"]
    assert heard.names == ["whole"]
    assert not any(os.path.lexists(path) for path in paths)


def test_a_restart_that_begins_is_left_alone(
    heard: Heard, spools: RankSpools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread sleeps while ranks end and the next ones are started; an end wakes it."""
    monkeypatch.setattr(tracing_spools, "PAUSE_S", BOUND_S)
    for number in range(3):
        told(spools.open(0, {}), f"of {number}")
        spools.ended(0)
        spools.retire()
    assert heard.spans == []
    assert spools.close(BOUND_S / 2)
    assert heard.names == ["of 0", "of 1", "of 2"]
