"""`nvrx top`: all jobs, or the ranks of one, redrawn every second. Elsewhere than on a terminal: once."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from nvrx_async.job.client import JobClient
from nvrx_launcher.ctl import look, text_jobs
from nvrx_launcher.ctl.place import EtcdOptions, job_client
from nvrx_launcher.ctl.screen import Screen, screen_for
from nvrx_launcher.ctl.watching import redrawn

REFRESH_S = 1.0


async def top(options: EtcdOptions, run_id: str | None, screen: Screen) -> int:
    """Draw until Ctrl-C."""
    if not screen.redraws:
        return await (
            look.status(options, run_id, screen, watch=False) if run_id else look.ps(options, screen)
        )
    if run_id:
        async with job_client(options, run_id) as job, job.changes() as changes:
            patience = job.patience()
            await redrawn(screen, changes.next, lambda: patience.of(lambda: _of_job(job, screen)), REFRESH_S)
        return 0
    await redrawn(screen, _a_while, lambda: _of_all(options, screen), REFRESH_S)
    return 0


async def _of_job(job: JobClient, screen: Screen) -> Sequence[str]:
    """The job's head, then its ranks: those that reported longest ago on top."""
    found = await job.status(live=True)
    fresh = screen_for(screen.form, rows=None)
    ordered = sorted(found.ranks, key=lambda rank: (-(rank.beat_age_s or 0.0), rank.rank))
    lines = [*text_jobs.head(found, fresh), ""]
    if ordered:
        lines.append(text_jobs.summary_of_ranks(ordered))
    return [*lines, *text_jobs.ranks(ordered, fresh)]


async def _of_all(options: EtcdOptions, screen: Screen) -> Sequence[str]:
    fresh = screen_for(screen.form, rows=None)
    return text_jobs.jobs(await look.all_jobs(options), fresh)


async def _a_while(seconds: float | None) -> None:
    """Jobs come and go anywhere: time alone redraws the list."""
    await anyio.sleep(REFRESH_S if seconds is None else seconds)
