"""The agent's probe port: which questions it answers, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
from anyio.abc import TaskStatus

from nvrx_async.job.live import REACHED
from nvrx_async.probe import Handler, ProbeServer


async def serve_probe(
    handlers: Mapping[str, Handler],
    host: str,
    token: str | None,
    warn: Callable[[str], None],
    *,
    task_status: TaskStatus[str],
) -> None:
    """Serve until cancelled; starts with the address to publish, "" where no port can be had."""
    server = ProbeServer(handlers, token=token, warn=warn, patient=frozenset({REACHED}))
    async with anyio.create_task_group() as tasks:
        try:
            address = await tasks.start(server.serve, host)
        except OSError as error:
            warn(f"this agent answers no questions, no port can be had at {host}: {error}")
            address = ""
        task_status.started(address)
