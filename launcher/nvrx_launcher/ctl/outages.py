"""Outages of etcd among the events that etcd holds: it cannot tell of them itself, histories on this machine can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path

import anyio.to_thread

from nvrx_async.job.client import JobClient
from nvrx_async.job.history import past
from nvrx_async.job.job_events import EventKind, JobEvent
from nvrx_async.job.times import as_utc, parsed
from nvrx_launcher.ctl.nearby import HISTORY, job_of
from nvrx_launcher.ctl.past import folders


async def outages(job: JobClient, log_dir: str | None, since: datetime | None) -> list[JobEvent]:
    """Those of the last attempt that a history on this machine knows: of one node, all would tell of each again."""
    places = [*folders(job.run_id, log_dir), *map(Path, await job.log_folders())]
    since_utc = as_utc(since) if since is not None else ""
    found = await anyio.to_thread.run_sync(_remembered, job.run_id, list(dict.fromkeys(places)))
    return [event for event in found if event.at_utc >= since_utc]


async def with_outages(
    told: AsyncIterator[JobEvent], known: Sequence[JobEvent], *, whole: bool
) -> AsyncIterator[JobEvent]:
    """Events with these at their places. `whole`: the first event is the attempt's, what was before is not of it."""
    waiting, first = list(known), whole
    async for event in told:
        while waiting and _comes_before(waiting[0], event):
            earlier = waiting.pop(0)
            if not first:
                yield earlier
        first = False
        yield event
    for left in waiting:
        yield left


def _comes_before(one: JobEvent, other: JobEvent) -> bool:
    mine, its = parsed(one.at_utc), parsed(other.at_utc)
    return mine is not None and its is not None and mine < its


def _remembered(run_id: str, places: Sequence[Path]) -> list[JobEvent]:
    for folder in places:
        try:
            if run_id not in (folder.name, job_of(folder)):
                continue
            with (folder / HISTORY).open("rb") as file:
                found = [event for event in past(run_id, file).events if event.kind is EventKind.ETCD]
        except OSError:
            continue  # another node's folder, or one that cannot be read: etcd's own events are told all the same
        if found:
            return found
    return []
