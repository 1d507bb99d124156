"""Differences of pairs that were measured one after the other, and how sure they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

DRAWS = 2000
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True, slots=True)
class Difference:
    """Medians of both sides, and the median difference with its confidence interval of 95 %.

    The interval is a bootstrap over launches, and over the pairs within them: what differs between two processes
    (the places of their code and data) is no property of what is compared.
    """

    base: float
    other: float
    middle: float
    low: float
    high: float

    def shown(self, digits: int, whole: float | None = None) -> list[str]:
        """Cells of a table; the last one is the difference as a part of `whole`, else of the base."""
        part = whole or self.base
        bounds = f"{self.low:+.{digits}f} .. {self.high:+.{digits}f}"
        share = (
            f"{self.middle / part:+.1%} ({self.low / part:+.1%} .. {self.high / part:+.1%})" if part else "-"
        )
        return [
            f"{self.base:.{digits}f}",
            f"{self.other:.{digits}f}",
            f"{self.middle:+.{digits}f} ({bounds})",
            share,
        ]


def difference(launches: Sequence[Sequence[tuple[float, float]]]) -> Difference:
    """Compare; each launch is a list of pairs (base, other)."""
    chance = random.Random(1)
    deltas = [[other - base for base, other in pairs] for pairs in launches if pairs]

    def drawn() -> float:
        found: list[float] = []
        for one in chance.choices(deltas, k=len(deltas)):
            found += chance.choices(one, k=len(one))
        return median(found)

    means = sorted(drawn() for _ in range(DRAWS))
    return Difference(
        median(base for pairs in launches for base, _ in pairs),
        median(other for pairs in launches for _, other in pairs),
        median(delta for one in deltas for delta in one),
        means[int(_LOW * DRAWS)],
        means[int(_HIGH * DRAWS)],
    )
