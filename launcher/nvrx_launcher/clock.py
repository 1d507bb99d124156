"""The agent's clock: deadlines on CLOCK_BOOTTIME, which counts suspended time too; UTC for people."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from nvrx_async.rounds.events import Now


def boottime_s() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def utc() -> str:
    """The wall clock as ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now() -> Now:
    """The moment of a decision."""
    return Now(boottime_s(), utc())
