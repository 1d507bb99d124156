"""The keeper as a process of the operating system: started, waited for, ended by force."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import anyio

from nvrx_launcher.errors import KeeperStartError
from nvrx_launcher.sweep import KEEPER_MARK, MARK
from nvrx_launcher.workers import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


DYING_S = 0.3
"""How long a keeper that was killed may take to die; one that waits for a disk may never."""


async def connect(
    command: Sequence[str], env: Mapping[str, str], life_sign: int | None
) -> tuple[subprocess.Popen[bytes], tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Start it with one end of a socket pair; returns the process and the streams of the other end.

    `life_sign`: a descriptor that it inherits.

    Raises:
        KeeperStartError: the command cannot be run.
    """
    ours, theirs = socket.socketpair()
    try:
        process = await anyio.to_thread.run_sync(_spawn, command, theirs.fileno(), env, life_sign)
    except OSError as error:
        ours.close()
        raise KeeperStartError(f"the keeper cannot be started with {command[0]}: {error}") from error
    finally:
        theirs.close()
    ours.setblocking(False)  # noqa: FBT003 - takes no keywords
    return process, await asyncio.open_unix_connection(sock=ours)


def environment(tag: str) -> dict[str, str]:
    """What a keeper gets of this process's environment: no secrets, and the marks by which it is found."""
    kept = {name: value for name, value in os.environ.items() if not is_secret(name)}
    return {**kept, MARK: tag, KEEPER_MARK: "1"}


def _spawn(
    command: Sequence[str], fd: int, env: Mapping[str, str], life_sign: int | None
) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C in the terminal reaches the agent only. Its stderr is the agent's."""
    return subprocess.Popen(
        [*command, "--control", str(fd)],
        pass_fds=[fd] if life_sign is None else [fd, life_sign],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env=env,
    )


async def death(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Wait for the exit of a keeper that closed its socket, by force at the end, and reap it if it dies of that."""
    pidfd = os.pidfd_open(process.pid)
    dead = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, dead.set)
    try:
        with anyio.move_on_after(within_s):
            await dead.wait()
        if not dead.is_set():
            process.kill()
            with anyio.move_on_after(DYING_S):
                await dead.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    process.poll()


def how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """In words."""
    code = process.returncode
    if code is None:
        return "it says nothing"
    if code >= 0:
        return f"it exited with {code}"
    return f"it was ended by {signal.Signals(-code).name}"
