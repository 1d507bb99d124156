"""The starts of ranks as spans: each part once, when it is over, whatever a rank has not come to."""

from __future__ import annotations

import pytest

from nvrx_launcher.tracing_rank_starts import RankStart, RankStarts
from nvrx_telemetry import semconv

RESOURCES = {local_rank: {semconv.DL_RANK: local_rank} for local_rank in range(2)}
PARTS = [
    (semconv.RANK_STARTUP, 10.0, 11.0),
    (semconv.RANK_SETUP, 11.0, 13.0),
    (semconv.RANK_FIRST_STEP, 13.0, 13.5),
]


@pytest.mark.parametrize(
    ("start", "parts"),
    [
        (RankStart(), []),
        (RankStart(11.0), PARTS[:1]),
        (RankStart(11.0, 13.0), PARTS[:2]),
        (RankStart(11.0, 13.0, 13.5), PARTS),
    ],
)
def test_what_is_over_is_told(start: RankStart, parts: list[tuple[str, float, float]]) -> None:
    found = list(RankStarts(10.0, RESOURCES).news({1: start}))
    assert [(part.name, part.start_s, part.end_s) for part in found] == parts
    assert all((part.local_rank, part.resource) == (1, RESOURCES[1]) for part in found)


def test_each_part_is_told_once_and_of_each_rank() -> None:
    starts = RankStarts(10.0, RESOURCES)
    ends = [RankStart(11.0), RankStart(11.0, 13.0), RankStart(11.0, 13.0, 13.5), RankStart(11.0, 13.0, 13.5)]
    told = [
        [(part.name, part.local_rank) for part in starts.news({0: end, 1: ends[max(i - 1, 0)]})]
        for i, end in enumerate(ends)
    ]
    first, second, third, last = told
    assert first == [(semconv.RANK_STARTUP, 0), (semconv.RANK_STARTUP, 1)]
    assert second == [(semconv.RANK_SETUP, 0)]
    assert third == [(semconv.RANK_FIRST_STEP, 0), (semconv.RANK_SETUP, 1)]
    assert last == [(semconv.RANK_FIRST_STEP, 1)]


def test_ranks_that_nobody_prepared_are_passed_over() -> None:
    assert list(RankStarts(10.0, {}).news({0: RankStart(11.0, 13.0, 13.5)})) == []
