"""Moments as records hold them (ISO 8601 in UTC, milliseconds): earlier ones, and the time between two. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta


def parsed(utc: str) -> datetime | None:
    """The moment, None for "" and for what is no moment."""
    try:
        moment = datetime.fromisoformat(utc)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def as_utc(moment: datetime) -> str:
    """The moment as records hold it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def earlier(utc: str, by_s: float) -> str:
    """The moment `by_s` seconds before this one, "" if this is none."""
    moment = parsed(utc)
    return as_utc(moment - timedelta(seconds=by_s)) if moment is not None else ""


def seconds_between(start_utc: str, end_utc: str) -> float | None:
    """Seconds from start to end, negative where clocks disagree; None if one of them is unknown."""
    start, end = parsed(start_utc), parsed(end_utc)
    return (end - start).total_seconds() if start is not None and end is not None else None


def first(moments: Iterable[str]) -> str:
    """The earliest of the moments that are known, "" if none is."""
    return min((utc for utc in moments if parsed(utc) is not None), key=_order, default="")


def last(moments: Iterable[str]) -> str:
    """The latest of the moments that are known, "" if none is."""
    return max((utc for utc in moments if parsed(utc) is not None), key=_order, default="")


def _order(utc: str) -> datetime:
    moment = parsed(utc)
    if moment is None:
        raise ValueError(f"{utc!r} is no moment")
    return moment
