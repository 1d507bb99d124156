"""What agent and keeper say to each other, on this side: orders as plain values, reports as events."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nvrx_async.job.records import EndedBy
from nvrx_launcher.keeper_events import (
    Fenced,
    Grew,
    HookTold,
    IdleLost,
    KeeperEvent,
    RankExited,
    RankStarted,
    RoundGone,
    SpoolWarning,
    StartFailure,
    StartRefused,
)
from nvrx_launcher.workers import RankCommand, Release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_EVENTS: Mapping[str, Callable[..., KeeperEvent]] = {
    "started": RankStarted,
    "exited": RankExited,
    "gone": RoundGone,
    "grew": Grew,
    "fenced": Fenced,
    "refused": StartRefused,
    "warning": SpoolWarning,
    "hook": HookTold,
    "idle_lost": IdleLost,
}


def event_of(message: Mapping[str, Any]) -> KeeperEvent:
    """A report of the keeper."""
    fields = {name: value for name, value in message.items() if name != "report"}
    if message["report"] == "exited":
        failure = fields["failure"]
        fields["by"] = EndedBy(fields["by"])
        fields["failure"] = StartFailure(**failure) if failure else None
    if message["report"] == "gone":
        fields["unkillable"] = tuple(fields["unkillable"])
    return _EVENTS[message["report"]](**fields)


def on_wire(command: RankCommand) -> dict[str, Any]:
    """A rank to start, as the keeper reads it."""
    return {
        "local_rank": command.local_rank,
        "argv": [_bytes_kept(word) for word in command.argv],
        "env": {_bytes_kept(name): _bytes_kept(value) for name, value in command.env.items()},
        "cwd": _bytes_kept(command.cwd),
        "terminal": command.terminal,
        "cpus": command.cpus,
        "stdout_path": _bytes_kept(command.stdout_path),
        "stderr_path": _bytes_kept(command.stderr_path),
        "hook": asdict(command.hook) if command.hook else None,
        "release": _release_on_wire(command.release) if command.release else None,
    }


def _release_on_wire(release: Release) -> dict[str, Any]:
    names = {_bytes_kept(name): _bytes_kept(value) for name, value in release.names.items()}
    return {"pid": release.pid, "names": names, "wait_ms": release.wait_ms}


def _bytes_kept(text: str) -> str:
    """The same bytes for the keeper, which runs in UTF-8 mode whatever the agent's locale is."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")
