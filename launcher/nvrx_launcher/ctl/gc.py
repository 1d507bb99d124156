"""`nvrx gc`: jobs of long ago, taken out of etcd. Nothing of a living job is touched."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from nvrx_async.etcd.types import Delete, Empty, ModifiedAt, Txn
from nvrx_async.job.keys import AttemptKeys, current, job_scope
from nvrx_async.job.status import JobState, JobStatus
from nvrx_async.job.times import parsed
from nvrx_launcher.ctl import look
from nvrx_launcher.ctl.place import EtcdOptions, connected, places
from nvrx_launcher.ctl.screen import Screen

if TYPE_CHECKING:
    from nvrx_async.etcd import EtcdClient


async def gc(options: EtcdOptions, screen: Screen, *, before: datetime, sure: bool, abandoned: bool) -> int:
    """List jobs that ended before a moment; with `sure` delete their keys.

    A job without an outcome, of which nobody is registered, may only have lost its etcd for a while and train on:
    it is looked at only where `abandoned` says that the person knows better.
    """
    lines = []
    for place in await places(options):
        async with connected(options, place.endpoints) as client:
            for job in await look.summaries(client):
                if not _is_old(job, before, abandoned=abandoned):
                    continue
                gone = sure and await _remove(client, job)
                what = "removed" if gone else "kept, it was started again" if sure else "would be removed"
                lines.append(f"{job.run_id}  {job.state.value} {screen.ago(job.since_utc)} ago: {what}")
    if lines and not sure:
        lines.append(screen.palette.path("hint:") + " --yes removes them; their logs stay on disk")
    screen.lines(lines or ["nothing to remove"])
    return 0


def _is_old(job: JobStatus, before: datetime, *, abandoned: bool) -> bool:
    since = parsed(job.since_utc)
    over = job.outcome is not None or (abandoned and job.state is JobState.ABANDONED)
    return over and since is not None and since < before


async def _remove(client: EtcdClient, job: JobStatus) -> bool:
    """Delete all keys of a job, if it is as it was looked at: no agent is registered, no new attempt has begun."""
    key = current(job.run_id)
    held = await client.get(key)
    if held is None:
        return False
    nobody = Empty(AttemptKeys(job.run_id, job.attempt).nodes)
    unmoved = ModifiedAt(key, held.mod_revision)
    done = await client.commit(Txn((nobody, unmoved), (Delete(job_scope(job.run_id)),)))
    return done.succeeded
