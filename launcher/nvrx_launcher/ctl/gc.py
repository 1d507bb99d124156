"""`nvrx gc`: jobs of long ago, taken out of etcd, and data of killed agents' etcd on this host.

Nothing of a living job is touched.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import anyio.to_thread

from nvrx_async.etcd import UnavailableError, leftovers
from nvrx_async.etcd.types import Delete, Empty, ModifiedAt, Txn
from nvrx_async.job.keys import AttemptKeys, current, job_scope
from nvrx_async.job.status import JobState, JobStatus
from nvrx_async.job.times import parsed
from nvrx_launcher.ctl import look
from nvrx_launcher.ctl.errors import NoEtcdError
from nvrx_launcher.ctl.place import EtcdOptions, Place, connected, places
from nvrx_launcher.ctl.screen import Screen

if TYPE_CHECKING:
    from nvrx_async.etcd import EtcdClient

_WOULD_GO = "would be removed"


async def gc(options: EtcdOptions, screen: Screen, *, before: datetime, sure: bool, abandoned: bool) -> int:
    """List jobs that ended before a moment; with `sure` delete their keys.

    A job without an outcome, of which nobody is registered, may only have lost its etcd for a while and train on:
    it is looked at only where `abandoned` says that the person knows better. First what servers of dead agents have
    left on this host: that needs no etcd.
    """
    lines = await anyio.to_thread.run_sync(_left_here, sure)
    silent: UnavailableError | None = None
    for place in await _places(options, needed=not lines):
        try:
            async with connected(options, place.endpoints) as client:
                lines += await _collected(client, screen, before, sure=sure, abandoned=abandoned)
        except UnavailableError as error:
            silent = error
            if not options.named:
                look.warn_of_silence(screen, place, error)
    if not sure and any(_WOULD_GO in line for line in lines):
        lines.append(screen.palette.path("hint:") + " --yes removes them; their logs stay on disk")
    if lines or silent is None:
        screen.lines(lines or ["nothing to remove"])
    if silent is not None and (options.named or not lines):
        raise silent
    return 0


async def _collected(
    client: EtcdClient, screen: Screen, before: datetime, *, sure: bool, abandoned: bool
) -> list[str]:
    """A line for each old job of an etcd; with `sure` its keys are deleted."""
    lines = []
    for job in await look.summaries(client):
        if not _is_old(job, before, abandoned=abandoned):
            continue
        gone = sure and await _remove(client, job)
        what = "removed" if gone else "kept, it was started again" if sure else _WOULD_GO
        lines.append(f"{job.run_id}  {job.state.value} {screen.ago(job.since_utc)} ago: {what}")
    return lines


async def _places(options: EtcdOptions, *, needed: bool) -> tuple[Place, ...]:
    try:
        return await places(options)
    except NoEtcdError:
        if needed:
            raise
        return ()


def _left_here(sure: bool) -> list[str]:  # noqa: FBT001 - for a thread
    """A line for each folder of a server on this host; with `sure` what nobody will want again is removed."""
    lines = []
    for one in leftovers.survey():
        if one.fate is leftovers.Fate.HELD:
            continue
        what = f"kept, {one.why}"
        if one.fate is leftovers.Fate.LEFT:
            gone = sure and leftovers.remove(one)
            what = "removed" if gone else "kept, it was taken meanwhile" if sure else _WOULD_GO
            what += f", {one.why}"
        job = one.job.strip() or "a job"
        lines.append(f"{one.path}  etcd data of {job}, {one.size_bytes / 1e6:.0f} MB: {what}")
    return lines


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
