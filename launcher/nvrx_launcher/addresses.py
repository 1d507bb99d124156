"""Which address of this host others reach it at, and whether a name means this host. No reverse look-ups."""

from __future__ import annotations

import socket
from collections.abc import Sequence


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


def is_loopback(addresses: Sequence[str]) -> bool:
    """Whether all of these literal addresses are loopback ones, which other hosts cannot reach."""
    return all(address.startswith("127.") or address == "::1" for address in addresses)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0))
    except OSError:
        return False
    return True
