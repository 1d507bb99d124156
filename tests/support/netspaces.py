"""A network of hosts on one machine, that can be cut into parts: a bridge in this namespace, a namespace for each host.

Who uses it runs in a network and mount namespace of its own (`in_own_namespaces`), so that the machine's network is
left alone, and so is its shared memory: all is gone with the last process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from support.hosts import Host, host

NETWORK = "10.79.0"
HERE = 254
INSIDE = "NVRX_TEST_NAMESPACES"
"""Set in the environment of what `in_own_namespaces` started."""
_TRUNK, _PART = "trunk", "part"


def possible() -> bool:
    """Whether this user may make the namespaces, and the tools are there."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    tried = ["unshare", "-n", "-m", "sh", "-c", "ip link add x type bridge && mount -t tmpfs none /mnt"]
    return subprocess.run(tried, capture_output=True, timeout=20, check=False).returncode == 0


def in_own_namespaces(program: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a Python program with a network, mounts and shared memory of its own."""
    inside = 'mount -t tmpfs none /dev/shm && ip link set lo up && exec "$@"'
    mark = f"{INSIDE}=1"
    return (
        *("unshare", "-n", "-m", "--propagation", "private", "sh", "-c", inside, "sh"),
        *("env", mark, sys.executable, program, *arguments),
    )


def are_own() -> bool:
    """Whether this process was started in namespaces of its own."""
    return INSIDE in os.environ


class Network:
    """Hosts `10.79.0.1`, `.2`, … on a bridge. `ip` runs ip(8) where the bridge is."""

    def __init__(self, hosts: Sequence[Host], ip: Callable[..., None]) -> None:
        self.hosts = hosts
        self._ip = ip

    @staticmethod
    def address(number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def cut(self, *numbers: int) -> None:
        """These hosts still reach each other, and nobody else."""
        for number in numbers:
            self._ip("link", "set", f"port{number}", "master", _PART)

    def heal(self) -> None:
        """All hosts reach each other."""
        for number in range(len(self.hosts)):
            self._ip("link", "set", f"port{number}", "master", _TRUNK)


@contextmanager
def network(count: int) -> Iterator[Network]:
    """So many hosts, all connected, by a bridge in a namespace of its own."""
    with host() as switch, _network(count, switch.command("ip")) as made:
        yield made


@contextmanager
def network_here(count: int) -> Iterator[Network]:
    """The same with the bridge in this namespace, so that this process is on it, as `.254`."""
    with _network(count, ("ip",)) as made:
        subprocess.run(["ip", "addr", "add", f"{NETWORK}.{HERE}/24", "dev", _TRUNK], check=True, timeout=20)
        yield made


@contextmanager
def _network(count: int, command: Sequence[str]) -> Iterator[Network]:
    def ip(*words: str) -> None:
        subprocess.run([*command, *words], check=True, timeout=20)

    with ExitStack() as stack:
        for bridge in (_TRUNK, _PART):
            ip("link", "add", bridge, "type", "bridge", "forward_delay", "0")
            stack.callback(ip, "link", "del", bridge)
            ip("link", "set", bridge, "up")
        hosts = [stack.enter_context(host()) for _ in range(count)]
        for number, one in enumerate(hosts):
            port = f"port{number}"
            ip("link", "add", port, "type", "veth", "peer", "name", "net0", "netns", str(one.pid))
            stack.callback(ip, "link", "del", port)  # at once; with its host it would go some time later
            ip("link", "set", port, "master", _TRUNK, "up")
            one.does("ip", "addr", "add", f"{Network.address(number)}/24", "dev", "net0")
            one.does("ip", "link", "set", "net0", "up")
        yield Network(hosts, ip)
