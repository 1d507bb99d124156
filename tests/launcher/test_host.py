"""What the agent asks its host: addresses, memory kills, the time."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime

import pytest

from nvrx_launcher.addresses import is_own, own_address
from nvrx_launcher.cgroup import oom_kills
from nvrx_launcher.clock import boottime_s, now, utc


def test_the_own_address_towards_a_peer_is_what_routing_says():
    assert own_address("127.0.0.1", 2379) == "127.0.0.1"
    assert own_address("127.9.9.9", 1) in ("127.0.0.1", "127.9.9.9")
    assert own_address("localhost", 2379) in ("127.0.0.1", "::1")


def test_every_address_of_a_name_is_tried(monkeypatch):
    def resolve(host, port, **_):
        bad = (socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("255.255.255.255", port))
        good = (socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", port))
        return [bad, good]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert own_address("peer", 1) == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolve("", 1)[:1])
    with pytest.raises(OSError, match=r"."):
        own_address("peer", 1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    with pytest.raises(OSError, match="peer has no address"):
        own_address("peer", 1)


def test_a_name_that_does_not_resolve_is_told(monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OSError, match="not known"):
        own_address("nowhere", 1)
    assert not is_own("nowhere")


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("localhost", True), ("127.3.4.5", True), ("192.0.2.1", False)]
)
def test_an_address_is_own_if_it_can_be_bound(host, own):
    assert is_own(host) is own


def cgroup(folder, membership="0::/job\n", events="low 0\noom 3\noom_kill 2\n"):
    (folder / "job").mkdir()
    if events is not None:
        (folder / "job" / "memory.events").write_text(events)
    (folder / "membership").write_text(membership)
    return oom_kills(folder, folder / "membership")


@pytest.mark.parametrize(
    ("membership", "events", "kills"),
    [
        ("0::/job\n", "low 0\noom 3\noom_kill 2\noom_group_kill 9\n", 2),
        ("12:cpu:/x\n0::/job\n", "oom_kill 5\n", 5),
        ("0::/job\n", "low 0\n", 0),
        ("0::/job\n", None, 0),
        ("12:memory:/job\n", "oom_kill 5\n", 0),
        ("0::/other\n", "oom_kill 5\n", 0),
        ("", "oom_kill 5\n", 0),
    ],
)
def test_memory_kills_are_counted_where_somebody_counts(tmp_path, membership, events, kills):
    assert cgroup(tmp_path, membership, events) == kills


def test_memory_kills_of_this_very_process_can_be_asked_for(tmp_path):
    assert oom_kills() >= 0
    assert oom_kills(tmp_path, tmp_path / "nothing") == 0


def test_the_clock_counts_suspended_time_and_tells_people_utc():
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    moment = now()
    assert before_s <= moment.s <= boottime_s()
    told = datetime.fromisoformat(utc())
    assert moment.utc.endswith("Z")
    assert abs((told - datetime.now(UTC)).total_seconds()) < 60
