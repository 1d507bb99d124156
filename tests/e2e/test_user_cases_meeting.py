"""Cases of users, rows 1 to 29 of the project's collection: who meets whom, where, and who is missing."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator

import pytest
from support import hosts
from support.etcd_server import EtcdProcess, free_ports
from support.stage import News, Stage, stage

TWO = ("--nnodes", "2")
TELLS = ("sh", "-c", 'echo "rank $RANK at $MASTER_ADDR with ${GLOO_SOCKET_IFNAME:-any}"')
REDUCES = """
import os, signal
import torch
import torch.distributed as dist

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 0:
    print("left over" if store.check(["left"]) else "clean store", flush=True)
    store.set("left", "by " + os.environ["NVRX_ROUND"])
dist.barrier()
total = torch.ones(1)
dist.all_reduce(total)
print(f"round {os.environ['NVRX_ROUND']}: rank {dist.get_rank()} reduced {int(total)} of {os.getpid()}", flush=True)
if os.environ["NVRX_ROUND"] == "0":
    while True:
        dist.all_reduce(torch.ones(4))
signal.sigwait({signal.SIGUSR1})
dist.destroy_process_group()
"""


def script(on: Stage, text: str) -> str:
    path = on.folder / "train.py"
    path.write_text(text)
    return str(path)


def places(ranks: list[News]) -> dict[str, int]:
    return {one.node: one.rank for one in ranks}


@pytest.mark.parametrize(
    "pause_s", [0, 1, pytest.param(5, marks=pytest.mark.soak), pytest.param(20, marks=pytest.mark.soak)]
)
def test_2_a_node_that_left_comes_back_whenever_it_likes(job: Stage, pause_s: int) -> None:
    stays, leaves = (job.launch(node=f"n{place}", options=TWO) for place in range(2))
    job.up(0, 2)
    leaves.signal(signal.SIGINT)
    assert leaves.ends() == 130, job.told()
    job.for_a_while(pause_s)
    back = job.launch(node="n1", options=TWO)
    ranks = job.up(1, 2)
    assert {one.world_size for one in ranks} == {2}
    job.finish(ranks)
    assert (stays.ends(), back.ends()) == (0, 0), job.told()


@pytest.mark.timeout(120)
def test_v4_v7_11_17_56_who_reduced_with_a_node_that_dies_goes_on_as_rank_0_of_a_new_world(
    job: Stage,
) -> None:
    """The new world has a store of its own, which holds nothing of the one before. --max-restarts is 0: what the
    survivor's collective says of the lost peer is billed to the loss.
    """
    options = ("--nnodes", "1:2", "--lease-ttl", "3")
    agents = {
        f"n{place}": job.launch(
            script(job, REDUCES),
            node=f"n{place}",
            options=(*options, "--node-rank", str(place)),
            environment={"OMP_NUM_THREADS": "1"},
        )
        for place in range(2)
    }
    for place, agent in enumerate(agents.values()):
        agent.says(rf"round 0: rank {place} reduced 2 of", bound_s=90)
    assert agents["n0"].said("clean store")
    agents["n0"].signal(signal.SIGKILL)
    found = agents["n1"].says(r"round 1: rank 0 reduced 1 of (\d+)", bound_s=60)
    assert agents["n1"].said("clean store")
    assert not agents["n1"].said("left over")
    ledger = job.held()["0/round"].value["ledger"]
    assert (ledger["restarts"], ledger["membership"]) == (0, 1), ledger
    os.kill(int(found[1]), signal.SIGUSR1)
    assert agents["n1"].ends() == 0, job.told()


def test_7_launches_of_two_attempts_never_meet_and_the_earlier_cannot_come_back(job: Stage) -> None:
    earlier, later = ({"NVRX_LAUNCH_ID": f"slurm-7-0.{count}"} for count in range(2))
    old = [job.launch(node=f"old{place}", options=TWO, environment=earlier) for place in range(2)]
    job.up(0, 2)
    new = [job.launch(node=f"new{place}", options=TWO, environment=later) for place in range(2)]
    for agent in new:
        agent.says(
            r"launch slurm-7-0.0 of run id \S+ still has nodes \(old0, old1\): waiting until they are gone"
        )
    assert {one.node for one in job.news} == {"old0", "old1"}
    for agent in old:
        agent.signal(signal.SIGTERM)
    assert [agent.ends() for agent in old] == [143, 143], job.told()

    job.until(
        lambda: sum(one.attempt == 1 and one.word == "up" for one in job.news) == 2, "the next attempt is up"
    )
    ranks = [one for one in job.news if one.attempt == 1]
    assert {one.node for one in ranks} == {"new0", "new1"}
    stray = job.launch(node="old0", options=TWO, environment=earlier)
    assert stray.ends() == 2, job.told()
    assert stray.said(
        r"error: this agent belongs to launch slurm-7-0.0, which launch slurm-7-0.1 of run id \S+ has"
    )
    job.finish(ranks)
    assert [agent.ends() for agent in new] == [0, 0], job.told()


def test_10_every_node_ends_with_the_reason_of_the_one_that_failed(job: Stage) -> None:
    program = job.ranks("--fail", "raise", "--fail-rank", "1")
    agents = [
        job.launch(*program, node=f"n{place}", options=(*TWO, "--node-rank", str(place)))
        for place in range(2)
    ]
    assert [agent.ends() for agent in agents] == [1, 1], job.told()
    for agent in agents:
        summary = agent.text.rpartition(f"job {job.run_id} failed")[2]
        assert "AskedToFailError: the shards are all gone" in summary, agent.text


@pytest.fixture
def on_own_etcd(own_etcd: EtcdProcess) -> Iterator[Stage]:
    with stage(own_etcd.endpoint) as made:
        yield made


def test_15_an_etcd_that_never_comes_back_ends_the_job_in_few_words(
    on_own_etcd: Stage, own_etcd: EtcdProcess
) -> None:
    """In short: the ranks are gone within the TTL. That the agent asks for a requeue later is a soak test."""
    ttl_s = 3
    agent = on_own_etcd.launch(
        options=(
            "--nnodes",
            "1",
            "--lease-ttl",
            str(ttl_s),
            "--etcd-embedded",
            "off",
            "--etcd-outage-limit",
            "0",
        )
    )
    (rank,) = on_own_etcd.up(0, 1)
    living = on_own_etcd.watch(rank.pid)
    before = agent.text.count("\n")
    own_etcd.kill()
    on_own_etcd.all_gone([living], ttl_s + 5.0)
    agent.says("the lease was not renewed in time: the keeper killed all ranks")
    on_own_etcd.for_a_while(3)
    assert agent.text.count("\n") - before <= 6, agent.text
    agent.signal(signal.SIGTERM)
    assert agent.ends(bound_s=20) == 143


def test_18_where_nobody_listens_the_message_says_what_was_tried(alone: Stage) -> None:
    options = ("--rdzv-endpoint", "localhost:1", "--etcd-embedded", "off", "--join-timeout", "2")
    agent = alone.run("--nnodes", "1", *options, *alone.ranks())
    assert agent.ends() == 3, alone.told()
    assert agent.said("no etcd endpoint answered within 2 s")
    assert agent.said(r"localhost:1 resolves to \S*127\.0\.0\.1:1.*errno 111"), agent.text
    assert agent.said("hint: is etcd running there, and reachable from this machine")


def test_19_who_is_here_is_named_where_others_never_came(job: Stage) -> None:
    options = ("--nnodes", "3", "--join-timeout", "4")
    agents = [job.launch(node=f"n{place}", options=options) for place in range(2)]
    assert [agent.ends() for agent in agents] == [3, 3], job.told()
    for agent in agents:
        assert agent.said(
            r"never started: in 4 s \(--join-timeout\) 2 of 3 nodes joined; here: (n0, n1|n1, n0)"
        )


def test_19_who_is_missing_is_named_where_it_was_here(job: Stage) -> None:
    stays, leaves = (
        job.launch(node=f"n{place}", options=(*TWO, "--join-timeout", "4")) for place in range(2)
    )
    job.up(0, 2)
    leaves.signal(signal.SIGTERM)
    assert leaves.ends() == 143
    assert stays.ends() == 75, job.told()
    assert stays.said(
        r"too few nodes to go on: in 4 s \(--join-timeout\) 1 of 2 nodes joined; "
        r"missing: n1 \(gone since \d\d:\d\d:\d\d\)"
    )


def test_20_the_wished_order_holds_over_five_restarts(job: Stage) -> None:
    options = (*TWO, "--max-restarts", "6")
    second = job.launch(node="n1", options=(*options, "--node-rank", "1"))
    second.says("1 of 2 nodes joined")
    first = job.launch(node="n0", options=(*options, "--node-rank", "0"))
    for number in range(6):
        ranks = job.up(number, 2)
        assert places(ranks) == {"n0": 0, "n1": 1}
        if number < 5:
            os.kill(ranks[number % 2].pid, signal.SIGKILL)
    job.finish(ranks)
    assert (first.ends(), second.ends()) == (0, 0), job.told()


def test_21_a_spare_takes_the_place_of_the_dead_node_and_nobody_else_moves(job: Stage) -> None:
    options = ("--nnodes", "3", "--lease-ttl", "3")
    agents = {
        name: job.launch(node=name, options=(*options, "--node-rank", str(place)))
        for place, name in enumerate(("n0", "n1", "n2"))
    }
    assert places(job.up(0, 3)) == {"n0": 0, "n1": 1, "n2": 2}
    agents["spare"] = job.launch(node="spare", options=options)
    agents["spare"].says("this node is a spare")
    agents.pop("n1").signal(signal.SIGKILL)
    ranks = job.up(1, 3)
    assert places(ranks) == {"n0": 0, "spare": 1, "n2": 2}
    job.finish(ranks)
    assert [agent.ends() for agent in agents.values()] == [0, 0, 0], job.told()


def test_22_two_hosts_that_are_told_localhost_make_no_worlds_of_their_own(alone: Stage) -> None:
    with hosts.host() as one, hosts.host() as other:
        (port,) = free_ports(1)
        options = (
            *TWO,
            "--rdzv-id",
            alone.run_id,
            "--join-timeout",
            "6",  # a busy machine takes seconds to start an etcd
            "--log-dir",
            str(alone.folder / "logs"),
        )
        meeting = ("--rdzv-endpoint", f"localhost:{port}")
        agents = [
            alone.start(*at.command(*hosts.AGENT), *options, *meeting, "--node-id", name, *alone.ranks())
            for at, name in ((one, "n0"), (other, "n1"))
        ]
        assert [agent.ends() for agent in agents] == [3, 3], alone.told()
        for agent in agents:
            assert agent.said("warning: other hosts cannot reach localhost"), alone.told()
            assert agent.said(r"never started: in \d+ s \(--join-timeout\) 1 of 2 nodes joined")
        assert alone.news == []


@pytest.mark.parametrize("interface", [None, "net1"])
def test_25_several_networks_and_the_one_that_was_chosen(alone: Stage, interface: str | None) -> None:
    """Two hosts. Without a choice an agent is where etcd reaches it; with one, ranks meet on the other network."""
    with hosts.two_hosts() as (one, other):
        options = (*TWO, "--rdzv-id", alone.run_id, "--rdzv-endpoint", "10.77.0.1:2379", "--no-python")
        chosen = ("--interface", interface) if interface else ()
        logs = ("--log-dir", str(alone.folder / "logs"))
        agents = [
            alone.start(
                *at.command(*hosts.AGENT), *options, *chosen, *logs, "--node-id", f"n{place}", *TELLS,
                environment={"NVRX_JOB_TOKEN": "secret"},
            )
            for place, at in enumerate((one, other))
        ]  # fmt: skip
        assert [agent.ends() for agent in agents] == [0, 0], alone.told()
        network = "10.78.0" if interface else "10.77.0"
        for place, agent in enumerate(agents, start=1):
            assert agent.said(rf"this node is n{place - 1} at {network}\.{place} with 1 rank"), agent.text
            assert agent.said(rf"rank \d at {network}\.\d with {interface or 'any'}"), agent.text
            assert not agent.said("other hosts cannot reach")


def test_24_a_name_whose_first_addresses_are_dead(job: Stage) -> None:
    port = (job.endpoint or "").rpartition(":")[2]
    names = ("2001:db8::1 meeting", "::1 meeting", "127.0.0.1 meeting", "127.0.0.1 localhost")
    dead = socket.socket(socket.AF_INET6)
    with dead:
        dead.bind(("::1", int(port)))  # held, and refused: nobody listens
        agent = job.start(
            *hosts.with_names(job.folder, *names), *hosts.AGENT,
            *("--rdzv-endpoint", f"meeting:{port}", "--rdzv-id", job.run_id, "--nnodes", "1"),
            *("--log-dir", str(job.folder / "logs"), "--no-python", *TELLS),
        )  # fmt: skip
        assert agent.ends() == 0, job.told()
    assert agent.said(r"rank 0 at \S+ with any"), agent.text


@pytest.mark.parametrize(
    "launches", [5, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(240)])]
)
def test_26_many_launches_at_once_on_one_host(alone: Stage, launches: int) -> None:
    """Each with an etcd, a store and ports of its own."""
    logs = ("--log-dir", str(alone.folder / "logs"), "--no-python")
    agents = [alone.run("--standalone", *logs, *TELLS) for _ in range(launches)]
    assert [agent.ends(bound_s=180) for agent in agents] == [0] * launches, alone.told()
    for agent in agents:
        assert not re.search("in use", agent.text, re.IGNORECASE), agent.text


def test_29_few_open_files_are_named_before_ranks_run_out_of_them(job: Stage) -> None:
    """The agent itself has one connection however many ranks it has."""
    few = ("sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh", *hosts.AGENT)
    meeting = ("--rdzv-endpoint", job.endpoint or "", "--rdzv-id", job.run_id, "--nnodes", "1")
    logs = ("--log-dir", str(job.folder / "logs"), "--no-python", "--nproc-per-node", "40", "true")
    agent = job.start(*few, *meeting, *logs)
    assert agent.ends(bound_s=60) == 0, job.told()
    assert agent.said(r"note: ranks may have 128 open files each \(ulimit -n\)")
