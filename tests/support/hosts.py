"""Two hosts on one machine: network namespaces with two networks between them, and name tables of their own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

AGENT = (sys.executable, "-m", "nvrx_launcher")


class Host:
    """A host is a process that holds its namespace; `command` runs there."""

    def __init__(self, holder: subprocess.Popen[bytes]) -> None:
        self._holder = holder

    @property
    def pid(self) -> int:
        return self._holder.pid

    def command(self, *words: str) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self.pid), "-n", "--", *words)

    def does(self, *words: str) -> None:
        subprocess.run(self.command(*words), check=True, timeout=20)


@contextmanager
def host() -> Iterator[Host]:
    """A host of its own with nothing but loopback; skips the test where that may not be made."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("there is no ip and unshare here")
    ready = "ip link set lo up && echo ready && exec sleep 3600"
    holder = subprocess.Popen(["unshare", "-n", "sh", "-c", ready], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"ready\n":
            pytest.skip("network namespaces may not be made here")
        yield Host(holder)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()


@contextmanager
def two_hosts(networks: Sequence[str] = ("10.77.0", "10.78.0")) -> Iterator[tuple[Host, Host]]:
    """Two hosts, `.1` and `.2` of each network, on interfaces net0, net1, …"""
    with host() as one, host() as other:
        for number, network in enumerate(networks):
            name = f"net{number}"
            cable = ("ip", "link", "add", name, "netns", str(one.pid), "type", "veth")
            subprocess.run([*cable, "peer", "name", name, "netns", str(other.pid)], check=True, timeout=20)
            for place, at in enumerate((one, other), start=1):
                at.does("ip", "addr", "add", f"{network}.{place}/24", "dev", name)
                at.does("ip", "link", "set", name, "up")
        yield one, other


def with_names(folder: Path, *lines: str) -> tuple[str, ...]:
    """What runs behind this finds names in these lines instead of those of the machine's hosts file."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mount namespaces may not be made here")
    table = folder / "hosts"
    table.write_text("".join(f"{line}\n" for line in lines))
    return ("unshare", "-m", "sh", "-c", f'mount --bind {table} /etc/hosts && exec "$@"', "sh")
