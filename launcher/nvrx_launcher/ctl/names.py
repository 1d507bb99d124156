"""Names of jobs, nodes, ranks and rounds, for a shell that completes."""

from __future__ import annotations

import anyio

from nvrx_async.etcd import EtcdError
from nvrx_async.job.errors import JobError
from nvrx_async.job.reader import run_ids
from nvrx_launcher.ctl.errors import NoEtcdError
from nvrx_launcher.ctl.place import EtcdOptions, connected, job_client, places

WITHIN_S = 1.5
"""A shell waits while a person does: after this there are no names."""


def names(what: str, options: EtcdOptions, job: str) -> list[str]:
    """All names of a kind: jobs, or a job's node, rank or round; none where nobody can be asked."""
    try:
        return anyio.run(_found, what, options, job)
    except (EtcdError, JobError, NoEtcdError, OSError):
        return []  # a shell that completes has no place for an error: the command itself will tell


async def _found(what: str, options: EtcdOptions, job: str) -> list[str]:
    found: list[str] = []
    with anyio.move_on_after(WITHIN_S):
        if what == "jobs":
            for place in await places(options):
                async with connected(options, place.endpoints) as client:
                    found += await run_ids(client)
        elif job:
            found = await _of_job(what, options, job)
    return found


async def _of_job(what: str, options: EtcdOptions, job: str) -> list[str]:
    async with job_client(options, job) as client:
        status = await client.status(live=False)
    if what == "node":
        return [node.node_id for node in status.nodes]
    if what == "rank":
        return [str(rank.rank) for rank in status.ranks]
    return [str(number) for number in range(status.round + 1)] if what == "round" else []
