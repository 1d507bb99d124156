"""A sign of life that outlives no process of an agent, for who starts in another container of the same host.

Each container sees its own processes only, so an agent whose container was restarted cannot look for what the one
before had started. But it can ask: an agent listens at an abstract unix socket, whose name is its tag's alone, and
its keeper and ranks inherit the descriptor. Such a name belongs to a network namespace, which the containers of a
pod share and which lives as long as any process in it; it is free again when the last process that holds it has
ended (unix(7), network_namespaces(7)). So where boot and network namespace are the same and nobody listens, nothing
that kept its descriptors lives: agent and keeper are dead, and ranks die with their keeper.

What a rank starts may close its descriptors, as Python's `subprocess` does. It dies with its container if the agent was
the first process there; else, where agent and keeper are killed at once, it may live on unheard.
"""

from __future__ import annotations

import fcntl
import hashlib
import socket
from contextlib import suppress
from pathlib import Path

_FIRST_DESCRIPTOR = 100
"""Above those that shell scripts use by number."""


class LifeSign:
    """Listens at the tag's name from now on; where that is not possible nobody can prove anything by it.

    `descriptor` is for all to inherit that the agent starts, None if it does not listen; then `net_namespace` is empty.
    """

    def __init__(self, tag: str) -> None:
        self._listening = _listening(tag)
        self.net_namespace = network_namespace() if self._listening is not None else ""

    @property
    def descriptor(self) -> int | None:
        """What children inherit."""
        return None if self._listening is None else self._listening.fileno()

    def close(self) -> None:
        """Nothing that this agent started lives any more."""
        if self._listening is not None:
            self._listening.close()


def is_heard(tag: str) -> bool:
    """Whether a process of this network namespace holds the tag's name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(_name(tag))
        except ConnectionRefusedError:  # nobody listens there
            return False
        except OSError:  # many have asked and were never answered, or asking is not allowed
            return True
    return True


def network_namespace() -> str:
    """The network namespace of this process; empty where /proc does not tell."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/net").readlink())
    return ""


def _listening(tag: str) -> socket.socket | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        try:
            made.bind(_name(tag))
            made.listen(1)
            return socket.socket(fileno=fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR))
        except OSError:  # a sandbox that knows no abstract names, the name taken, no descriptors that high
            return None


def _name(tag: str) -> str:
    return f"\0nvrx-{hashlib.sha256(tag.encode()).hexdigest()[:32]}"
