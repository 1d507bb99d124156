"""Which address of this host others reach it at, and whether a name means this host. No reverse look-ups."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 256
_INET6_TABLE = Path("/proc/net/if_inet6")


def own_address(peer_host: str, peer_port: int) -> str:
    """The local address from which this host reaches `peer_host`: routing decides, nothing is sent.

    Every result of the name's resolution is tried, in the resolver's order.

    Raises:
        OSError: the name does not resolve, or no route leads to any of its addresses.
    """
    failure: OSError | None = None
    for family, _, _, _, address in socket.getaddrinfo(peer_host, peer_port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            failure = error
    raise failure or OSError(f"{peer_host} has no address")


def is_own(host: str) -> bool:
    """Whether `host` resolves to an address of this host: one that can be bound here."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def given_address(interface: str | None, address: str | None) -> str | None:
    """The address that a person named by itself or by its interface, None where nobody did; raises OSError."""
    return interface_address(interface) if interface else address


def interface_address(name: str) -> str:
    """The address of a network interface of this host: IPv4 if it has one, else a global IPv6 one.

    Raises:
        OSError: there is no such interface, or it has no address that other hosts can reach it at.
    """
    socket.if_nametoindex(name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack(f"{_IFREQ_BYTES}s", name.encode()))
        except OSError:
            return _inet6_address(name)
    return socket.inet_ntoa(answer[20:24])


def _inet6_address(name: str) -> str:
    """By the kernel's table, whose lines are address, index, prefix, scope, flags, name; scope 0 is global."""
    try:
        rows = [line.split() for line in _INET6_TABLE.read_text(encoding="ascii").splitlines()]
    except FileNotFoundError:
        rows = []  # a host without IPv6
    found = [row[0] for row in rows if row[5] == name and int(row[3], 16) == 0]
    if not found:
        raise OSError(f"{name} has no address")
    return str(ipaddress.IPv6Address(bytes.fromhex(found[0])))


def interfaces() -> list[str]:
    """Names of all network interfaces of this host."""
    return [name for _, name in socket.if_nameindex()]


def unreachable(endpoint_host: str, own: str) -> str:
    """Why other hosts cannot come to where nodes meet; empty where they can.

    `own` is the address from which this host reaches the endpoint: loopback only if that is this host, by an
    address that means something else to every other one.
    """
    try:
        own_ip = ipaddress.ip_address(own.partition("%")[0])
    except ValueError:
        return ""  # a name that a person gave for this host: others resolve it for themselves
    if not own_ip.is_loopback:
        return ""
    if endpoint_host in (own, "localhost"):
        return f"other hosts cannot reach {endpoint_host}"
    return f"{endpoint_host} is {own} to this host, which other hosts cannot reach (look at /etc/hosts)"


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0))
    except OSError:
        return False
    return True
