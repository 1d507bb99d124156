"""Agents of this user on this machine, and where their jobs' etcd is: a file in each agent's private folder.

So `nvrx` finds a job that was started with a private etcd on a free port. Blocking calls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nvrx_async.job.codec import decode, encode
from nvrx_async.job.errors import RecordError
from nvrx_launcher.link_folder import living_folders

_NAME = "agent.json"


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """An agent that runs here. `endpoints` are etcd's, as it reaches them."""

    run_id: str
    endpoints: tuple[str, ...]
    pid: int
    log_dir: str


def publish(folder: Path, agent: KnownAgent) -> None:
    """Write it into the agent's private folder, which goes with the agent.

    Raises:
        OSError: the folder cannot be written.
    """
    new = folder / f"{_NAME}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor with its mode
        file.write(encode(agent))
    new.replace(folder / _NAME)


def known_agents() -> tuple[KnownAgent, ...]:
    """All agents of this user that live here and have reached their etcd, by job and pid."""
    found = []
    for folder in living_folders():
        try:
            found.append(decode(KnownAgent, str(folder / _NAME), (folder / _NAME).read_bytes()))
        except (OSError, RecordError):
            continue  # it starts just now, ended meanwhile, or is of another version
    return tuple(sorted(found, key=lambda agent: (agent.run_id, agent.pid)))
