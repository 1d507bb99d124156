"""What etcd of jobs that were killed has left on this host: removed by the next agent that starts here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import anyio

from nvrx_async.aside import aside
from nvrx_async.etcd import ConfigurationError, EtcdConfig, plan_cluster
from nvrx_async.etcd.leftovers import DataFolder, remove_left

LIMIT_S = 5.0
"""A start waits no longer for it: it goes on aside."""


async def remove_left_data(settings: EtcdConfig | None, job: str, say: Callable[[str], None]) -> None:
    """Remove data of dead agents, those of `job` excepted: they are for its members. Says what was removed.

    That nothing could be removed is no reason not to start.
    """
    token = ""
    if settings is not None and len(settings.endpoints) > 1:
        with suppress(ConfigurationError):  # whoever needs the plan says so
            token = plan_cluster(settings.parsed(), job, settings.credentials).token
    removed: tuple[DataFolder, ...] = ()
    with anyio.move_on_after(LIMIT_S), suppress(OSError):
        removed = await aside(partial(remove_left, spare=token))
    for line in told(removed):
        say(line)


def told(removed: Sequence[DataFolder]) -> list[str]:
    """A line for each job."""
    by_job: dict[str, list[DataFolder]] = {}
    for one in removed:
        by_job.setdefault(one.job.strip(), []).append(one)
    return [
        f"removed what the etcd of {f'job {job}' if job else 'an earlier job'}, whose agent was killed, had left in "
        f"{', '.join(sorted({str(one.path.parent) for one in found}))}: "
        f"{sum(one.size_bytes for one in found) / 1e6:.0f} MB"
        for job, found in by_job.items()
    ]
