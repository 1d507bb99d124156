"""What one call costs, back to back and paced: by the same code for every client that is compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from _table import quantile

BACK_TO_BACK, PACED, PAUSE_S = 20_000, 300, 0.01


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds. Paced: after a pause of 10 ms, as between steps, with cold caches."""

    back_to_back_us: float
    paced_us: float
    paced_p99_us: float

    @property
    def shown(self) -> tuple[str, str, str]:
        """Cells of a table."""
        return f"{self.back_to_back_us:.2f}", f"{self.paced_us:.2f}", f"{self.paced_p99_us:.2f}"


def cost(call: Callable[[], object]) -> Cost:
    """Measure; takes about four seconds."""
    begun = time.perf_counter()
    for _ in range(BACK_TO_BACK):
        call()
    each = (time.perf_counter() - begun) / BACK_TO_BACK
    paced = []
    for _ in range(PACED):
        time.sleep(PAUSE_S)
        begun = time.perf_counter()
        call()
        paced.append(time.perf_counter() - begun)
    return Cost(each * 1e6, statistics.median(paced) * 1e6, quantile(paced, 0.99) * 1e6)
