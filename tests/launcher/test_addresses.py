"""Which address is this host's own, and what other hosts cannot reach."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nvrx_launcher import addresses
from nvrx_launcher.addresses import interface_address, interfaces, own_address, unreachable


def resolving_to(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        del host
        families = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in found]
        return [(family, None, None, "", (one, port)) for family, one in zip(families, found, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_every_result_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A documentation address behind a scope that no interface has: no route, as a dead AAAA is."""
    resolving_to(monkeypatch, "fe80::1", "127.0.0.1")
    assert own_address("node-a", 2379) == "127.0.0.1"


def test_no_result_that_leads_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving_to(monkeypatch, "fe80::1")
    with pytest.raises(OSError, match=r"."):
        own_address("node-a", 2379)
    resolving_to(monkeypatch)
    with pytest.raises(OSError, match="node-a has no address"):
        own_address("node-a", 2379)


def test_an_interface() -> None:
    assert "lo" in interfaces()
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(OSError, match=r"."):
        interface_address("none0")


def test_an_interface_with_ipv6_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuses(*_: object) -> bytes:
        raise OSError

    table = tmp_path / "if_inet6"
    table.write_text(
        "fe800000000000000000000000000001 02 40 20 80 lo\n20010db8000000000000000000000007 02 40 00 80 lo\n"
    )
    monkeypatch.setattr(addresses, "_INET6_TABLE", table)
    monkeypatch.setattr(addresses.fcntl, "ioctl", refuses)
    assert interface_address("lo") == "2001:db8::7"
    table.write_text("")
    with pytest.raises(OSError, match="lo has no address"):
        interface_address("lo")


@pytest.mark.parametrize(
    ("host", "own", "why"),
    [
        ("127.0.0.1", "127.0.0.1", "other hosts cannot reach 127.0.0.1"),
        ("localhost", "::1", "other hosts cannot reach localhost"),
        ("node-a", "127.0.1.1", "node-a is 127.0.1.1 to this host, which other hosts cannot reach"),
        ("node-a", "10.0.0.7", ""),
        ("fe80::1", "fe80::2%eth0", ""),
        ("node-a", "node-b.example", ""),
    ],
)
def test_a_meeting_place_that_other_hosts_cannot_reach(host: str, own: str, why: str) -> None:
    found = unreachable(host, own)
    assert found.startswith(why)
    assert bool(found) == bool(why)
