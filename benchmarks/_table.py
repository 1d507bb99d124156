"""What the benchmarks share: figures of several runs in a table, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Sequence
from statistics import median


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 0) -> str:
    """Median, with the range behind it."""
    if not values:
        return "-"
    low, middle, high = (scale * value for value in (min(values), median(values), max(values)))
    return f"{middle:,.{digits}f} [{low:,.{digits}f}..{high:,.{digits}f}]"


def quantile(values: Sequence[float], q: float) -> float:
    """The value that a share `q` of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> str:
    """Where and when: to be printed with every figure."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    load = os.getloadavg()[0]
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"{day}, {os.cpu_count()} cores (virtual), {memory} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {load:.1f} at the start"
    )
