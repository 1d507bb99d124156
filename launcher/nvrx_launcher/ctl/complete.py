"""Names of jobs, nodes, ranks and rounds for the shell; and the scripts that make shells ask."""

from __future__ import annotations

import os
from typing import Any

import click

WITHIN_S = 1.5
"""A shell waits while a person does: after this there are no names."""
_MOST = 200


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of jobs that begin so."""
    del param
    return _asked("jobs", ctx.params, incomplete)


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of a job's nodes that begin so."""
    del param
    return _asked("node", ctx.params, incomplete)


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What `describe` can be asked about: nodes, ranks or rounds, as the word before says."""
    del param
    return _asked(str(ctx.params.get("what") or ""), ctx.params, incomplete)


def _asked(what: str, given: dict[str, Any], incomplete: str) -> list[str]:
    import anyio  # noqa: PLC0415 - not for --help

    from nvrx_async.etcd import EtcdError  # noqa: PLC0415
    from nvrx_async.job.errors import JobError  # noqa: PLC0415
    from nvrx_launcher.ctl.errors import NoEtcdError  # noqa: PLC0415
    from nvrx_launcher.ctl.place import options_from  # noqa: PLC0415

    text = {name: str(value) for name, value in given.items() if value}
    try:
        found = anyio.run(_found, what, options_from(os.environ, text), text.get("job", ""))
    except (EtcdError, JobError, NoEtcdError, OSError):
        return []  # a shell that completes has no place for an error: the command itself will tell
    return [name for name in found if name.startswith(incomplete)][:_MOST]


async def _found(what: str, options: Any, job: str) -> list[str]:
    import anyio  # noqa: PLC0415 - not for --help

    from nvrx_async.job.reader import run_ids  # noqa: PLC0415
    from nvrx_launcher.ctl.place import connected, job_client, places  # noqa: PLC0415

    found: list[str] = []
    with anyio.move_on_after(WITHIN_S):
        if what == "jobs":
            for place in await places(options):
                async with connected(options, place.endpoints) as client:
                    found += await run_ids(client)
        elif job:
            async with job_client(options, job) as client:
                status = await client.status(live=False)
            if what == "node":
                found = [node.node_id for node in status.nodes]
            elif what == "rank":
                found = [str(rank.rank) for rank in status.ranks]
            elif what == "round":
                found = [str(number) for number in range(status.round + 1)]
    return found
