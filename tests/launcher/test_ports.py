"""A reserved port is nobody else's, and torch's store can listen on it while it is held."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys

import pytest

from nvrx_launcher.ports import reserve_port

STORE = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore

def works(port, libuv):
    common = {"use_libuv": libuv, "timeout": timedelta(seconds=20), "wait_for_workers": False}
    store = TCPStore("127.0.0.1", port, is_master=True, **common)
    store.set("key", "value")
    client = TCPStore("127.0.0.1", port, is_master=False, **common)
    return client.get("key") == b"value"

print(works(int(sys.argv[1]), libuv=True), works(int(sys.argv[2]), libuv=False))
"""


def test_torchs_store_listens_on_a_port_while_it_is_held() -> None:
    """Both of torch's servers; one process, since importing torch takes long."""
    held = [reserve_port() for _ in range(2)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", STORE, *(str(port.port) for port in held)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "True True\n", done.stderr
    finally:
        for port in held:
            port.close()


def test_ports_are_given_once() -> None:
    held = [reserve_port() for _ in range(100)]
    try:
        assert len({port.port for port in held}) == 100
        for port in held:
            with socket.socket() as other, pytest.raises(OSError, match="in use") as refused:
                other.bind(("127.0.0.1", port.port))
            assert refused.value.errno == errno.EADDRINUSE
    finally:
        for port in held:
            port.close()


def test_nobody_answers_on_a_reserved_port_and_it_is_free_after_close() -> None:
    held = reserve_port()
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", held.port))
    held.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", held.port))


def test_without_ipv6_the_port_is_reserved_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    held = reserve_port()
    try:
        assert held.port > 0
    finally:
        held.close()
