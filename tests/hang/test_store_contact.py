"""Who waits in `init_process_group` without the store, by real sockets of real processes."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvrx_async.faults.culprit import Frame, RankState, culprit
from nvrx_async.hang.store_contact import store_trouble

INIT = (
    Frame("/v/site-packages/torch/distributed/rendezvous.py", 200, "_create_c10d_store"),
    Frame("/v/site-packages/torch/distributed/rendezvous.py", 280, "_env_rendezvous_handler"),
    Frame("/v/site-packages/torch/distributed/distributed_c10d.py", 1700, "init_process_group"),
    Frame("/home/u/train.py", 9, "main"),
)
PROGRAM = """
import socket, sys, time
family = socket.AF_INET6 if sys.argv[3] == "6" else socket.AF_INET
one = socket.socket(family)
if sys.argv[1] == "serves":
    one.bind(("", 0)); one.listen(); print(one.getsockname()[1], flush=True)
else:
    if sys.argv[1] == "connects":
        one.connect(("::1" if sys.argv[3] == "6" else "127.0.0.1", int(sys.argv[2])))
    print(0, flush=True)
time.sleep(1000)
"""


@contextmanager
def process(does: str, port: int = 0, family: str = "4") -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-c", PROGRAM, does, str(port), family]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            yield started.pid, int(started.stdout.readline())
        finally:
            started.kill()


@pytest.mark.parametrize("family", ["4", "6"] if socket.has_ipv6 else ["4"])
def test_who_serves_and_who_is_connected_is_in_order(family):
    with process("serves", 0, family) as (zero, port), process("connects", port, family) as (one, _):
        assert store_trouble(0, zero, port, INIT) == ""
        assert store_trouble(1, one, port, INIT) == ""


def test_who_is_not_is_told():
    with process("serves") as (zero, port), process("idles") as (one, _):
        assert "is not connected" in store_trouble(1, one, port, INIT)
        assert "does not serve" in store_trouble(0, one, port, INIT)
        assert "is not connected" in store_trouble(1, zero, port, INIT), "to listen is not to be connected"


def test_nothing_is_said_of_ranks_that_are_elsewhere_or_gone():
    with process("idles") as (pid, _):
        assert store_trouble(1, pid, 29500, INIT[2:]) == ""
        assert store_trouble(1, pid, 0, INIT) == ""
    assert store_trouble(1, pid, 29500, INIT) == ""


def state(number: int, store: str = "") -> RankState:
    return RankState(number, node="h", hung=True, hello=True, state="S", frames=INIT, store=store)


def test_it_tells_ranks_apart_that_wait_at_the_same_place():
    told = "waits in init_process_group and is not connected to the ranks' store on port 1"
    blame = culprit([state(0), state(1), state(2, told), state(3)])
    assert blame.rank == 2
    assert told in blame.sentence


def test_where_rank_0_does_not_serve_the_others_are_not_to_blame():
    blame = culprit([state(n, "does not serve" if n == 0 else "is not connected") for n in range(4)])
    assert blame.rank == 0
    assert "more" not in blame.sentence
