"""The agent's side of spools: all is read, in order, later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_launcher.tracing_later import Later
from nvrx_launcher.tracing_spools import RankSpools
from nvrx_telemetry import spool_line
from nvrx_telemetry.model import FinishedSpan
from nvrx_telemetry.traceparent import SpanName


class Heard:
    """What came out of the spools."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []
        self.failures: list[Exception] = []
        self.lost: list[int] = []

    def emit(self, span: FinishedSpan) -> None:
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
def later(heard: Heard) -> Later:
    return Later(heard.failures.append)


@pytest.fixture
def spools(heard: Heard, later: Later) -> Iterator[RankSpools]:
    made = RankSpools(heard.emit, heard.lost.append, lambda: 99, later)
    yield made
    made.retire()
    later._make()


def told(path: str, *names: str, still_open: bool = False) -> None:
    """A rank writes spans."""
    with Path(path).open("ab") as file:
        for number, name in enumerate(names, 1):
            me = SpanName(1, number)
            file.write(spool_line.line(name, me, 0, (10, 20), {}, None, still_open=still_open))


def test_what_is_left_is_read_before_the_end(heard: Heard, later: Later, spools: RankSpools) -> None:
    path = spools.open(0, {"rank": 0})
    told(path, *map(str, range(2000)))
    spools.retire()
    later._make()
    assert heard.names == [str(number) for number in range(2000)]
    assert not Path(path).exists(), "the memory is given back"


def test_nobody_waits_for_what_is_read(heard: Heard, later: Later, spools: RankSpools) -> None:
    told(spools.open(0, {}), "a")
    spools.look()
    spools.ended(0)
    spools.retire()
    assert heard.spans == []
    later._make()
    assert heard.names == ["a"], "once, though it was looked for three times"


def test_rounds_come_in_order_each_with_its_own_resource(
    heard: Heard, later: Later, spools: RankSpools
) -> None:
    for number in range(3):
        spools.retire()
        told(spools.open(0, {"round": number}), f"first {number}")
        spools.look()
        told(spools._readers[0].path, f"last {number}")
        spools.ended(0)
    spools.retire()
    later._make()
    assert heard.names == [f"{which} {number}" for number in range(3) for which in ("first", "last")]
    assert [span.resource for span in heard.spans] == [{"round": n} for n in range(3) for _ in range(2)]


def test_a_span_that_never_ended_is_told_when_its_round_is_over(
    heard: Heard, later: Later, spools: RankSpools
) -> None:
    told(spools.open(0, {}), "open", still_open=True)
    spools.ended(0)
    later._make()
    assert heard.spans == []
    spools.retire()
    spools.open(0, {})
    later._make()
    assert [(span.name, span.end_ns, bool(span.error)) for span in heard.spans] == [("open", 99, True)]


def test_what_breaks_is_told_and_costs_no_descriptor(heard: Heard, later: Later, spools: RankSpools) -> None:
    paths = [spools.open(local_rank, {}) for local_rank in range(2)]
    told(paths[0], "broken")
    told(paths[1], "whole")
    spools.retire()
    later._make()
    assert [str(failure) for failure in heard.failures] == ["broken"]
    assert heard.names == ["whole"]
    assert not any(os.path.lexists(path) for path in paths)


def test_what_found_no_room_is_counted_once(heard: Heard, later: Later, spools: RankSpools) -> None:
    path = spools.open(0, {})
    told(path, "a")
    with Path(path).open("ab") as file:
        file.write(spool_line.lost(3))
    for _ in range(2):
        spools.look()
    later._make()
    assert heard.lost == [3]
    assert heard.names == ["a"]
