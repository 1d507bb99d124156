"""The verbs that steer: a command is written to etcd, and its answer shown."""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nvrx_async.job.records import CommandPhase, Verb
from nvrx_async.job.times import as_utc
from nvrx_launcher.ctl.place import EtcdOptions, job_client
from nvrx_launcher.ctl.screen import Screen

REFUSED = 1


def who() -> str:
    """The person who asks, for the history: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container's user without an entry in passwd
    return f"{user}@{socket.gethostname()}"


async def act(
    options: EtcdOptions,
    run_id: str,
    verb: str,
    screen: Screen,
    *,
    node_id: str | None = None,
    reason: str = "",
    extra: Mapping[str, Any] | None = None,
    timeout_s: float,
) -> int:
    """Ask, wait for the answer, show it; 1 where the job refuses."""
    async with job_client(options, run_id) as job:
        answered = await job.command(
            Verb(verb),
            by=who(),
            now_utc=as_utc(datetime.now(UTC)),
            node_id=node_id,
            reason=reason,
            extra=extra,
            timeout_s=timeout_s,
        )
    done = answered.phase is CommandPhase.DONE
    if screen.form in ("json", "yaml"):
        screen.emit("Command", answered, list)
    elif done:
        screen.lines([f"{screen.palette.success(f'{verb}: done')}, {answered.answer}"])
    else:
        sys.stderr.write(f"{screen.palette.error(f'{verb}: refused')}, {answered.answer}\n")
    return 0 if done else REFUSED
