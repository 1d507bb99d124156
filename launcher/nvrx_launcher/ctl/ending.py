"""How the end of a job comes to those who follow it: by etcd, or by the job's folder where that is quicker.

A job with a private etcd takes it along when it ends. What the folder holds by then (`history.jsonl`) stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from nvrx_async.job.errors import NotSoError
from nvrx_async.job.history import past
from nvrx_async.job.status import JobStatus
from nvrx_launcher.ctl.growth import Growth
from nvrx_launcher.ctl.place import EtcdOptions, job_client

HISTORY = "history.jsonl"
ETCD_FIRST_S = 1.0
"""What etcd says of an end is newer; so long it is waited for after the folder has told of it."""


async def ended(
    options: EtcdOptions | None,
    run_id: str,
    roots: Sequence[Path],
    *,
    attempt: int | None,
    number: int | None = None,
) -> JobStatus | None:
    """Wait until the job has ended; how it stands then. With `number` until that round is over: None if others follow.

    Without `options` the folder alone is asked.

    Raises:
        EtcdError: etcd has been away for long, and the folder tells of no end either.
    """
    found: list[JobStatus | None] = []
    async with anyio.create_task_group() as tasks:

        async def wait(way: Callable[[], Awaitable[JobStatus | None]], longer_s: float) -> None:
            told = await way()
            await anyio.sleep(longer_s)
            found.append(told)
            tasks.cancel_scope.cancel()

        tasks.start_soon(wait, partial(_in_folder, run_id, roots, attempt), ETCD_FIRST_S)
        if options is not None:
            tasks.start_soon(wait, partial(_in_etcd, options, run_id, number), 0.0)
    return found[0]


async def _in_etcd(options: EtcdOptions, run_id: str, number: int | None) -> JobStatus | None:
    async with job_client(options, run_id) as job:
        if number is None:
            return await job.wait_for("ended")
        try:
            await job.wait_for(f"round={number + 1}")
        except NotSoError:
            return await job.status(live=False)
        return None


async def _in_folder(run_id: str, roots: Sequence[Path], attempt: int | None) -> JobStatus:
    """Wait until a history file tells the outcome of the attempt, or of its last one."""
    with Growth() as growth:
        while True:
            told = await anyio.to_thread.run_sync(_look, growth, run_id, roots, attempt)
            if told is not None:
                return told
            await growth.grown()


def _look(growth: Growth, run_id: str, roots: Sequence[Path], attempt: int | None) -> JobStatus | None:
    for root in dict.fromkeys(roots):
        if not root.is_dir():
            continue
        path = root / HISTORY
        growth.add(root)
        growth.add(path)
        told = history_of(run_id, path)
        if told is not None and told.outcome is not None and attempt in (None, told.attempt):
            return told
    return None


def history_of(run_id: str, path: Path) -> JobStatus | None:
    """How the job stood by its history, None without one."""
    try:
        with path.open("rb") as file:
            return past(run_id, file).status
    except FileNotFoundError:
        return None
