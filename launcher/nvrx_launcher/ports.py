"""A port for the store of rank 0, held by the agent until the store listens on it."""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReservedPort:
    """A port that nobody else is given while this is open."""

    port: int
    _socket: socket.socket

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


def reserve_port() -> ReservedPort:
    """Reserve a free port on all addresses of this host, IPv6 and IPv4 where there is IPv6.

    The socket is bound with SO_REUSEADDR and never listens. So another socket with SO_REUSEADDR, as torch's
    TCPStore has it, may listen on the port meanwhile, while the kernel gives it to nobody who asks for any.

    Raises:
        OSError: no port is free, or the machine has no network stack.
    """
    held = _dual_stack() or _bound(socket.AF_INET, "0.0.0.0")  # noqa: S104 - reserved, nothing listens on it
    return ReservedPort(held.getsockname()[1], held)


def _dual_stack() -> socket.socket | None:
    if not socket.has_dualstack_ipv6():
        return None
    try:
        return _bound(socket.AF_INET6, "::")
    except OSError:
        return None  # IPv6 is compiled in, but off


def _bound(family: socket.AddressFamily, address: str) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((address, 0))
    except OSError:
        held.close()
        raise
    return held
