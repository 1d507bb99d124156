"""Outages of etcd, which histories know, among the events that etcd knows."""

from __future__ import annotations

import pytest

from nvrx_async.job.job_events import EventKind, JobEvent
from nvrx_launcher.ctl.outages import with_outages


def event(second: int, kind: EventKind = EventKind.RUNNING) -> JobEvent:
    return JobEvent(f"2026-01-31T10:00:{second:02d}.000Z", kind, f"at {second}")


async def told(*seconds: int):
    for second in seconds:
        yield event(second)


@pytest.mark.parametrize(("whole", "seconds"), [(True, [2, 5, 6, 7, 8, 12]), (False, [1, 2, 5, 6, 7, 8, 12])])
async def test_each_stands_at_its_place(whole: bool, seconds: list[int]) -> None:  # noqa: FBT001 - of parametrize
    """What was before the first event of the whole attempt is of another one."""
    known = [event(second, EventKind.ETCD) for second in (1, 5, 6, 12)]
    found = [one async for one in with_outages(told(2, 7, 8), known, whole=whole)]
    assert [int(one.sentence[3:]) for one in found] == seconds
