"""Whether a rank that waits in `init_process_group` has found the store of the ranks, seen from outside.

All ranks wait there for one that does not come, and their Python stacks are the same. What tells them apart is in
the kernel's table of sockets: rank 0 listens on the round's port, all others are connected to it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvrx_async.faults.culprit import Frame

_INSIDE = "_env_rendezvous_handler"
"""Function of torch/distributed/rendezvous.py that makes the store from MASTER_ADDR and MASTER_PORT."""

_ESTABLISHED, _LISTEN = "01", "0A"


def store_trouble(rank: int, pid: int, port: int, frames: Sequence[Frame]) -> str:
    """What is wrong, behind the rank's name; "" if nothing is, or nothing can be told.

    Args:
        rank: rank 0 serves the store.
        pid: the rank's process.
        port: of the round's store; 0 if there is none.
        frames: its Python stack.
    """
    if port == 0 or pid <= 0 or not any(one.function == _INSIDE for one in frames):
        return ""
    try:
        mine = set(_sockets_of(pid))
        found = {(state, at) for inode, state, at in _table(pid, port) if inode in mine}
    except OSError:
        return ""
    if rank == 0:
        return "" if (_LISTEN, "local") in found else f"does not serve the ranks' store on port {port}"
    if (_ESTABLISHED, "remote") in found:
        return ""
    return f"waits in init_process_group and is not connected to the ranks' store on port {port}"


def _sockets_of(pid: int) -> Iterator[str]:
    """Inodes of its sockets."""
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):  # noqa: PTH208 - /proc
        with contextlib.suppress(OSError):
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - no path is meant
            if target.startswith("socket:["):
                yield target[8:-1]


def _table(pid: int, port: int) -> Iterator[tuple[str, str, str]]:
    """Inode, state, and which end has the port, of the TCP sockets in its network namespace (proc_pid_net(5))."""
    end = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            for line in Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(end):
                    yield fields[9], fields[3], "local"
                if fields[2].endswith(end):
                    yield fields[9], fields[3], "remote"
