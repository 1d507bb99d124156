"""Names, addresses and ports of this machine. Blocking calls."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from nvrx_launcher.ctl.checks.finding import Finding, Grade

SLOW_S = 1.0
FEW_PORTS = 4096
ETCD_PORT = 2379


def network_findings() -> list[Finding]:
    """Name resolution both ways, IPv6, ports."""
    return [*_names(), _ipv6(), *_ports()]


def _names() -> Iterator[Finding]:
    """The own name to an address, as other nodes will be told, and back."""
    name = socket.gethostname()
    began_s = time.monotonic()
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        hint = f"add it to /etc/hosts or DNS, or start agents with --local-addr ADDRESS ({error.strerror or error})"
        yield Finding("name", Grade.WARN, f"{name} has no address", hint)
        return
    took_s = time.monotonic() - began_s
    only_here = all(address.startswith("127.") or address == "::1" for address in found)
    if only_here:
        hint = "agents ask the kernel instead; a script that names its own host as master will be reached by nobody"
        yield Finding("name", Grade.NOTE, f"{name} is {', '.join(found)}: this machine only", hint)
    else:
        yield Finding("name", Grade.OK, f"{name} is {', '.join(found)}")
    if took_s > SLOW_S:
        yield Finding(
            "name speed",
            Grade.WARN,
            f"{took_s:.1f} s",
            "a name server that does not answer: /etc/resolv.conf",
        )
    yield _back(found[0])


def _back(address: str) -> Finding:
    try:
        name = socket.gethostbyaddr(address)[0]
    except OSError:
        hint = "nothing of ours needs it; some MPI and NCCL bootstraps do"
        return Finding("name back", Grade.NOTE, f"{address} has no name", hint)
    return Finding("name back", Grade.OK, f"{address} is {name}")


def _ipv6() -> Finding:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        text = "off: ::1 cannot be used"
        return Finding(
            "IPv6", Grade.NOTE, text, "name etcd and nodes by IPv4 addresses or names that have one"
        )
    return Finding("IPv6", Grade.OK, "::1 can be used")


def _ports() -> Iterator[Finding]:
    try:
        low, high = map(
            int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        )
    except (OSError, ValueError):
        low, high = 32768, 60999
    free = high - low + 1
    if free < FEW_PORTS:
        hint = "gloo and NCCL take one for each connection: sysctl net.ipv4.ip_local_port_range='32768 60999'"
        yield Finding("ports", Grade.WARN, f"{free} of them, {low} to {high}", hint)
    else:
        yield Finding("ports", Grade.OK, f"{free} of them, {low} to {high}")
    yield _port_of_etcd()


def _port_of_etcd() -> Finding:
    what = f"port {ETCD_PORT}"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", ETCD_PORT))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Finding(what, Grade.OK, "somebody listens: an etcd, if --rdzv-endpoint names this node")
        return Finding(
            what, Grade.WARN, f"cannot be used: {error.strerror}", "name another one in --rdzv-endpoint"
        )
    return Finding(what, Grade.OK, "free: --rdzv-endpoint may name this node")
