"""The starts of ranks as spans: interpreter and imports, what comes before the first step, the first step. Pure.

The moments are on the ranks' pages anyway, so that no rank does anything for these spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nvrx_telemetry import semconv
from nvrx_telemetry.model import Value


@dataclass(frozen=True, slots=True)
class RankStart:
    """How far a rank has come; seconds of CLOCK_BOOTTIME, None for not yet."""

    hello_s: float | None = None
    first_step_s: float | None = None
    second_step_s: float | None = None


@dataclass(frozen=True, slots=True)
class StartSpan:
    """A part of a rank's start that is over. `resource`: of the rank."""

    name: str
    local_rank: int
    start_s: float
    end_s: float
    resource: Mapping[str, Value]


class RankStarts:
    """Ranks of one node in one round, whose processes were ordered at `launched_s`. Each part is told once."""

    def __init__(self, launched_s: float, resources: Mapping[int, Mapping[str, Value]]) -> None:
        self._launched_s = launched_s
        self._resources = resources
        self._told: set[tuple[str, int]] = set()

    def news(self, starts: Mapping[int, RankStart]) -> Iterator[StartSpan]:
        """What is over since the last time."""
        for local_rank, start in starts.items():
            resource = self._resources.get(local_rank)
            if resource is None:
                continue
            parts = (
                (semconv.RANK_STARTUP, self._launched_s, start.hello_s),
                (semconv.RANK_SETUP, start.hello_s, start.first_step_s),
                (semconv.RANK_FIRST_STEP, start.first_step_s, start.second_step_s),
            )
            for name, start_s, end_s in parts:
                if start_s is None or end_s is None or (name, local_rank) in self._told:
                    continue
                self._told.add((name, local_rank))
                yield StartSpan(name, local_rank, start_s, end_s, resource)
