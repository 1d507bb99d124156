"""Networks that fall apart: nodes are network namespaces, and a switch between them that can be split.

etcd is on a host of its own, or on three or five of the nodes. Which side has it goes on; the other one has no living
rank before the next round starts anywhere. Row 30 of the user's cases (torchft PR#70: two quorum rooms, split brain)
is here.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.netspaces import Network, network, possible
from support.nodes import PORTS
from support.stage import Agent, Stage, Watched, stage
from support.training import BOUND_S, Training
from support.worlds import Entry, overlaps

TTL_S = 3
COMMON = (
    *("--nproc-per-node", "1", "--lease-ttl", str(TTL_S), "--max-restarts", "3", "--startup-grace", "0"),
    *("--grow-pause", "0", "--warm-workers", "off", "--hang-timeout", "off"),
)
BEYOND_T_S = 2.5 * TTL_S

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd of the hosts is the one on PATH"),
]


class Hosts(Training):
    """Agents n0, n1, … on hosts of their own, and what their ranks note."""

    def __init__(self, on: Stage, net: Network) -> None:
        super().__init__(on)
        self.net = net

    def start(self, number: int, size: str) -> Agent:
        command = [sys.executable, "-m", "nvrx_launcher", "--nnodes", size, *COMMON]
        command += ["--node-id", f"n{number}", "--rdzv-endpoint", self.stage.endpoint or ""]
        command += ["--rdzv-id", self.stage.run_id, "--log-dir", str(self.stage.folder / f"logs{number}")]
        agent = self.stage.start(*self.net.hosts[number].command(*command, *self.program))
        agent.node = f"n{number}"
        return agent

    def watch(self, entries: list[Entry], *numbers: int) -> list[Watched]:
        names = {f"n{number}" for number in numbers}
        return [self.stage.watch(entry.pid) for entry in entries if entry.node in names]

    def starts_after(self, number: int) -> float:
        """When the first rank of a later round started, in seconds of `time.monotonic`."""
        apart_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        return min(entry.at_s for entry in self.entries if entry.round > number) - apart_s

    def give_way(self, ranks: list[Entry], cut: tuple[int, ...], stay: int) -> int:
        """Cut off these hosts; the round in which the `stay` others go on, begun when no rank there lived any more."""
        lost = self.watch(ranks, *cut)
        self.net.cut(*cut)
        after = self.goes_on(ranks[0].round + 1, stay)
        assert {entry.node for entry in after}.isdisjoint({f"n{one}" for one in cut})
        began_s = self.starts_after(ranks[0].round)
        assert all(one.ended_s is not None and one.ended_s < began_s for one in lost), self.stage.told()
        return after[0].round

    def ends(self, *agents: Agent) -> None:
        """The training ends, and every agent says so; there never were two worlds."""
        self.end()
        assert [agent.ends(bound_s=BOUND_S) for agent in agents] == [0] * len(agents), self.stage.told()
        assert overlaps(self.entries) == []


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Three hosts, and a fourth with etcd."""
    if not possible():
        pytest.skip("network namespaces may not be made here")
    endpoint = f"{Network.address(3)}:2379"
    with network(4) as net, stage(endpoint) as made:
        urls = [f"--{kind}-client-urls=http://{endpoint}" for kind in ("listen", "advertise")]
        peer = ["--listen-peer-urls=http://127.0.0.1:0"]
        data = f"--data-dir={made.folder / 'etcd'}"
        etcd = made.start(*net.hosts[3].command("etcd", data, *urls, *peer))
        etcd.says("ready to serve client requests|serving insecure client requests")
        yield Hosts(made, net)


@contextmanager
def etcd_on_the_first(count: int, total: int) -> Iterator[Hosts]:
    """So many hosts in all, etcd on the first `count` of them."""
    if not possible():
        pytest.skip("network namespaces may not be made here")
    port = random.choice(PORTS)
    endpoints = ",".join(f"{Network.address(number)}:{port}" for number in range(count))
    with network(total) as net, stage(endpoints) as made:
        try:
            yield Hosts(made, net)
        finally:
            for agent in made.agents:
                for pid in [agent.pid, *agent.processes()]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            for folder in Path("/dev/shm").glob(f"nvrx-member-*-{port}-*"):
                shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def members() -> Iterator[Hosts]:
    """Four hosts, etcd on the first three."""
    with etcd_on_the_first(3, 4) as made:
        yield made


@pytest.fixture
def five_members() -> Iterator[Hosts]:
    """Five hosts, etcd on each."""
    with etcd_on_the_first(5, 5) as made:
        yield made


@pytest.mark.parametrize("cut", [(0,), (2,), (0, 1)], ids=["one", "another one", "two"])
def test_the_cut_off_side_is_dead_before_the_other_starts_and_comes_back(
    hosts: Hosts, cut: tuple[int, ...]
) -> None:
    agents = [hosts.start(number, "1:3") for number in range(3)]
    number = hosts.give_way(hosts.goes_on(0, 3), cut, 3 - len(cut))
    hosts.net.heal()
    hosts.goes_on(number + 1, 3)  # members again: there is room for them
    hosts.ends(*agents)


def test_a_side_with_enough_nodes_but_without_etcd_runs_nothing(hosts: Hosts) -> None:
    agents = [hosts.start(number, "2:3") for number in range(3)]
    ranks = hosts.goes_on(0, 3)
    number = ranks[0].round
    everybody = hosts.watch(ranks, 0, 1, 2)
    hosts.net.cut(0, 1)
    hosts.stage.all_gone(everybody, BOUND_S)
    hosts.stage.for_a_while(BEYOND_T_S)
    assert max(entry.round for entry in hosts.entries) == number, hosts.stage.told()
    hosts.net.heal()
    hosts.goes_on(number + 1, 2)
    hosts.ends(*agents)


@pytest.mark.parametrize("victim", [0, 1])
def test_who_is_cut_off_from_the_cluster_of_the_nodes_gives_its_ranks_to_the_spare(
    members: Hosts, victim: int
) -> None:
    agents = [members.start(number, "3") for number in range(3)]
    ranks = members.goes_on(0, 3)
    agents.append(members.start(3, "3"))
    agents[3].says("this node is a spare")
    members.give_way(ranks, (victim,), 3)
    before = len(agents[victim].text)
    members.net.heal()
    members.until(lambda: "this node is a spare" in agents[victim].text[before:], "it is back as a spare")
    members.ends(*agents)


@pytest.mark.parametrize("cut", [(0, 1), pytest.param((3, 4), marks=pytest.mark.soak)])
def test_two_of_five_members_run_nothing_though_a_world_needs_no_more_nodes(
    five_members: Hosts, cut: tuple[int, ...]
) -> None:
    agents = [five_members.start(number, "2:5") for number in range(5)]
    number = five_members.give_way(five_members.goes_on(0, 5), cut, 3)
    five_members.net.heal()
    five_members.goes_on(number + 1, 5)
    five_members.ends(*agents)
