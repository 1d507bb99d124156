"""A network of hosts on one machine, that can be cut into parts: a bridge in this namespace, a namespace for each host.

Who uses it runs in a network and mount namespace of its own (`in_own_namespaces`), so that the machine's network is
left alone, and so is its shared memory: all is gone with the last process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    """Hosts `10.79.0.1`, `.2`, … on a bridge; this process is `.254`, on the trunk."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = hosts

    @staticmethod
    def address(number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def cut(self, *numbers: int) -> None:
        """These hosts still reach each other, and nobody else."""
        for number in numbers:
            _ip("link", "set", f"port{number}", "master", _PART)

    def heal(self) -> None:
        """All hosts reach each other."""
        for number in range(len(self.hosts)):
            _ip("link", "set", f"port{number}", "master", _TRUNK)


@contextmanager
def network(count: int) -> Iterator[Network]:
    """So many hosts, all connected."""
    with ExitStack() as stack:
        for bridge in (_TRUNK, _PART):
            _ip("link", "add", bridge, "type", "bridge", "forward_delay", "0")
            stack.callback(_ip, "link", "del", bridge)
            _ip("link", "set", bridge, "up")
        _ip("addr", "add", f"{NETWORK}.{HERE}/24", "dev", _TRUNK)
        hosts = [stack.enter_context(host()) for _ in range(count)]
        for number, one in enumerate(hosts):
            port = f"port{number}"
            _ip("link", "add", port, "type", "veth", "peer", "name", "net0", "netns", str(one.pid))
            _ip("link", "set", port, "master", _TRUNK, "up")
            one.does("ip", "addr", "add", f"{Network.address(number)}/24", "dev", "net0")
            one.does("ip", "link", "set", "net0", "up")
        yield Network(hosts)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20)
