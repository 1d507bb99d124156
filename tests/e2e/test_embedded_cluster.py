"""etcd on the job's own nodes: three agents, each with a member; whichever is lost, the job goes on."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import Authority, Pair
from support.etcd_server import etcd_cluster
from support.etcd_view import EtcdView
from support.nodes import Nodes, member_endpoints, nodes_of
from support.stage import Agent, stage
from support.training import BOUND_S, Training
from support.worlds import misled, overlaps, result

from nvrx_async.etcd.wire import grpc, messages, stubs

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="a cluster wants an etcd on PATH")

OPTIONS = ("--nnodes", "3", "--nproc-per-node", "1", "--lease-ttl", "3")
PATIENT = (*OPTIONS[:-1], "6")
"""A lease that outlives the election of another leader."""
NAMES = ("n0", "n1", "n2")


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with nodes_of(member_endpoints()) as made:
        yield made


def started(nodes: Nodes, *names: str, options: tuple[str, ...] = OPTIONS) -> list[Agent]:
    return [nodes.start(name, options=options) for name in names]


def finished(nodes: Nodes, number: int, *agents: Agent) -> None:
    nodes.stage.finish(nodes.stage.up(number, 3))
    assert [agent.ends() for agent in agents] == [0] * len(agents), nodes.stage.told()


def test_three_agents_form_a_cluster_and_leave_nothing_of_it(nodes: Nodes) -> None:
    agents = started(nodes, *NAMES)
    nodes.stage.up(0, 3)
    for agent in agents:
        assert agent.said("etcd of 3 members on this job's nodes, 127.0.0.1:[0-9]+ here"), nodes.stage.told()
    assert {nodes.endpoint_of(agent) for agent in agents} == set(nodes.endpoints)
    folders = [nodes.data_of(agent) for agent in agents]
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    finished(nodes, 0, *agents)
    assert not any(folder.exists() for folder in folders)
    assert nodes.stage.left() == []


def test_members_come_one_by_one_and_who_is_missing_is_named(nodes: Nodes) -> None:
    (first,) = started(nodes, "n0")
    one, two, three = nodes.endpoints
    first.says(rf"etcd member {one} is up here; waiting for {two}, {three} \(2 of 3 are needed\)")
    (second,) = started(nodes, "n1")
    second.says("etcd of 3 members on this job.s nodes")
    (third,) = started(nodes, "n2")
    nodes.stage.up(0, 3)
    finished(nodes, 0, first, second, third)


@pytest.mark.parametrize("victim", ["runs_leader", "coordinates"])
def test_a_lost_node_is_replaced_by_the_spare(nodes: Nodes, victim: str) -> None:
    agents = started(nodes, *NAMES)
    nodes.stage.up(0, 3)
    spare = nodes.start("spare", options=OPTIONS)
    spare.says("this node is spare|spare at|waits")
    lost: Agent = getattr(nodes, victim)(*agents)
    nodes.lose(lost)
    nodes.stage.up(1, 3)
    finished(nodes, 1, spare, *(agent for agent in agents if agent is not lost))


def test_the_death_of_the_leaders_etcd_costs_no_rank(nodes: Nodes) -> None:
    agents = started(nodes, *NAMES, options=PATIENT)
    nodes.stage.up(0, 3)
    for _ in range(2):
        leader = nodes.runs_leader(*agents)
        pid = nodes.member_of(leader)
        assert pid is not None
        before = leader.text.count("member is up again")
        os.kill(pid, signal.SIGKILL)
        nodes.stage.until(
            lambda leader=leader, before=before: leader.text.count("member is up again") > before,
            "the member is started again",
        )
    finished(nodes, 0, *agents)
    assert {news.round for news in nodes.stage.news} == {0}, nodes.stage.told()


def test_a_frozen_leader_costs_no_rank(nodes: Nodes) -> None:
    """Nor does it once it goes on, unless this etcd is one of those that may then end leases, as agents warn."""
    training = Training(nodes.stage)
    agents = [nodes.start(name, *training.program, options=PATIENT) for name in NAMES]
    ranks = training.goes_on(0, 3)
    nodes.whole(*agents)
    leader = nodes.runs_leader(*agents)
    frozen, pid = nodes.endpoint_of(leader), nodes.member_of(leader)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    nodes.stage.for_a_while(7)  # longer than a lease lives
    others = [agent for agent in agents if agent is not leader]
    assert nodes.runs_leader(*others) in others
    assert {entry.pid for entry in training.entries} == {rank.pid for rank in ranks}, "frozen it cost nothing"
    os.kill(pid, signal.SIGCONT)
    nodes.follows(frozen)
    training.goes_on(0, 3)
    training.end()
    assert [agent.ends(bound_s=BOUND_S) for agent in agents] == [0, 0, 0], nodes.stage.told()
    if {entry.pid for entry in training.entries} != {rank.pid for rank in ranks}:
        assert leader.said("etcd #15247"), nodes.stage.told()
        assert {entry.round for entry in training.entries} == {0, 1}, nodes.stage.told()
        for agent in agents:
            assert agent.said(r"round 0 failed: node n\d \(.*\) lost: its lease ended"), nodes.stage.told()
    assert overlaps(training.entries) == []
    assert misled(training.folder, 3) == []
    assert result(training.folder)[1], "the result of an undisturbed run"


@pytest.mark.parametrize("data", ["kept", "gone"])
def test_an_agent_that_comes_back_brings_its_member_back(nodes: Nodes, data: str) -> None:
    agents = started(nodes, *NAMES)
    nodes.stage.up(0, 3)
    lost, *others = agents
    endpoint, folder = nodes.endpoint_of(lost), nodes.data_of(lost)
    before = {member.ID for member in nodes.members(nodes.endpoint_of(others[0]))}
    nodes.lose(lost)
    lost.ends()
    if data == "gone":
        shutil.rmtree(folder)
    (again,) = started(nodes, "n0")
    nodes.stage.up(1, 3)

    def whole() -> bool:
        members = nodes.members(nodes.endpoint_of(others[0]))
        return len(members) == 3 and all(one.name and not one.isLearner for one in members)

    if data == "gone":
        again.says("joins without data of its own")
    nodes.stage.until_seen(whole, "three members with a vote")
    assert nodes.endpoint_of(again) == endpoint
    after = {member.ID for member in nodes.members(nodes.endpoint_of(others[0]))}
    assert (after == before) == (data == "kept")
    finished(nodes, 1, again, *others)
    assert not folder.exists()


def test_the_data_of_a_job_that_was_killed_go_with_the_next_start_on_the_host(nodes: Nodes) -> None:
    agents = started(nodes, *NAMES)
    nodes.stage.up(0, 3)
    nodes.whole(*agents)
    lost, *others = agents
    folder, all_folders = nodes.data_of(lost), [nodes.data_of(agent) for agent in agents]
    nodes.lose(lost)
    lost.ends()

    def another_job() -> Agent:
        agent = nodes.stage.run("--standalone", *nodes.stage.ranks("--finish-from", "0"))
        assert agent.ends() == 0, nodes.stage.told()
        return agent

    another_job()
    assert folder.exists(), "its agent may come back: the two others are a cluster"
    for agent in others:
        nodes.lose(agent)
        agent.ends()
    told = another_job()
    assert not any(one.exists() for one in all_folders)
    assert told.said(
        rf"removed what the etcd of job {nodes.stage.run_id}, whose agent was killed, had left in "
    )


@pytest.mark.parametrize("comes", ["first", "last"])
def test_data_of_an_earlier_run_of_the_job_count_for_nothing(
    nodes: Nodes, tmp_path: Path, comes: str
) -> None:
    """Its node was lost there, the others ended the job: names, token and addresses are those of the next run."""
    options = ("--nnodes", "2:3", *OPTIONS[2:])
    agents = started(nodes, *NAMES, options=options)
    nodes.stage.up(0, 3)
    nodes.whole(*agents)
    lost = next(agent for agent in agents if nodes.endpoint_of(agent) == nodes.endpoints[-1])
    others = [agent for agent in agents if agent is not lost]
    folder = nodes.data_of(lost)
    nodes.lose(lost)
    lost.ends()
    kept = tmp_path / "kept"  # another start on this host may remove it meanwhile
    shutil.copytree(folder / "data", kept)
    nodes.stage.finish(nodes.stage.up(1, 2))
    assert [agent.ends() for agent in others] == [0, 0], nodes.stage.told()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    shutil.copytree(kept, folder / "data")
    # Agents of one host take the addresses in their order: the last one finds the data.
    nodes.stage.news.clear()
    again = []
    for name in NAMES:
        again += started(nodes, name, options=options)
        if comes == "last" and name == NAMES[1]:
            for agent in again:
                agent.says("etcd of 3 members on this job's nodes")
    nodes.whole(*again)
    assert any(agent.said("has data of an earlier run of this job") for agent in again), nodes.stage.told()
    stores = {one: EtcdView(one) for one in nodes.endpoints}

    def alike() -> bool:
        try:
            held = [view.job(nodes.stage.run_id).keys() for view in stores.values()]
        except OSError:  # it is started anew
            return False
        return held[0] == held[1] == held[2]

    nodes.stage.until_seen(alike, "all members tell the same")
    finished(nodes, 0, *again)


def test_who_leaves_takes_its_member_out_so_that_the_last_one_still_decides(nodes: Nodes) -> None:
    agents = started(nodes, *NAMES, options=("--nnodes", "1:3", *PATIENT[2:]))
    nodes.stage.up(0, 3)
    first, second, last = agents
    first.signal(signal.SIGTERM)
    assert first.ends() == 143, nodes.stage.told()
    nodes.stage.up(1, 2)
    assert len(nodes.members(nodes.endpoint_of(last))) == 2, nodes.stage.told()
    second.signal(signal.SIGTERM)
    assert second.ends() == 143, nodes.stage.told()
    nodes.stage.finish(nodes.stage.up(2, 1))
    assert last.ends() == 0, nodes.stage.told()


def test_with_certificates_no_port_is_open_to_strangers(nodes: Nodes, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    ours, theirs = authority.sign("node", "127.0.0.1"), stranger.sign("stranger", "127.0.0.1")
    nodes.stage.endpoint = ",".join(f"https://{one}" for one in nodes.endpoints)
    files = (
        "--etcd-cacert",
        f"{authority.ca_file}",
        "--etcd-cert",
        f"{ours.cert}",
        "--etcd-key",
        f"{ours.key}",
    )
    agents = started(nodes, *NAMES, options=(*OPTIONS, *files))
    ranks = nodes.stage.up(0, 3)
    for port in (int(one.rpartition(":")[2]) + step for one in nodes.endpoints for step in (0, 1)):
        assert lets_in(port, authority.ca_file, ours)
        assert not lets_in(port, authority.ca_file, theirs), port
        assert not lets_in(port, authority.ca_file, None), port
    nodes.stage.finish(ranks)
    assert [agent.ends() for agent in agents] == [0, 0, 0], nodes.stage.told()


def lets_in(port: int, ca_file: Path, pair: Pair | None) -> bool:
    """Whether the server goes on talking; with TLS 1.3 a refusal shows only when its first bytes are read."""
    context = ssl.create_default_context(cafile=ca_file)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            return bool(connection.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_job_token_closes_the_cluster(nodes: Nodes) -> None:
    secret = {"NVRX_JOB_TOKEN": "open sesame"}
    agents = [nodes.start(name, options=PATIENT, environment=secret) for name in NAMES]
    ranks = nodes.stage.up(0, 3)
    for endpoint in nodes.endpoints:
        with (
            grpc.insecure_channel(endpoint) as channel,
            pytest.raises(grpc.RpcError, match="user name is empty"),
        ):
            stubs.KVStub(channel).Range(messages.RangeRequest(key=b"/nvrx"), timeout=10)
    leader = nodes.runs_leader(*agents)
    os.kill(nodes.member_of(leader) or 0, signal.SIGKILL)
    leader.says("member is up again")
    nodes.stage.finish(ranks)
    assert [agent.ends() for agent in agents] == [0, 0, 0], nodes.stage.told()


def test_a_wrong_token_shuts_nobody_out_but_its_own_node(nodes: Nodes) -> None:
    """It comes while the cluster forms: whose password counts must not hang on who is first."""
    options = ("--nnodes", "2:3", *PATIENT[2:], "--rdzv-conf", "last_call_timeout=0.1")

    def with_token(name: str, token: str) -> Agent:
        return nodes.start(name, options=options, environment={"NVRX_JOB_TOKEN": token})

    wrong = with_token("n0", "close sesame")
    wrong.says("etcd member 127.0.0.1:[0-9]+ is up here; waiting for")
    right = [with_token(name, "open sesame") for name in NAMES[1:]]
    ranks = nodes.stage.up(0, 2)
    assert wrong.ends() == 3, nodes.stage.told()
    assert wrong.said("NVRX_JOB_TOKEN"), nodes.stage.told()
    assert not wrong.said("this node is n0"), nodes.stage.told()
    nodes.stage.finish(ranks)
    assert [agent.ends() for agent in right] == [0, 0], nodes.stage.told()


def test_two_nodes_cannot_form_one() -> None:
    with stage(",".join(member_endpoints(2))) as made:
        agent = made.launch(options=OPTIONS)
        assert agent.ends() == 2, made.told()
        assert agent.said("2 members tolerate the loss of 0, as 1 would")
        assert agent.said("name three or five")


def test_the_wheels_etcd_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    agent = nodes.stage.launch(options=OPTIONS, environment={"PATH": str(tmp_path / "empty")})
    assert agent.ends() == 3, nodes.stage.told()
    assert agent.said("etcd 3.5.1 may lose acknowledged writes")


def test_a_cluster_that_answers_gets_no_member_from_us() -> None:
    with etcd_cluster(3) as members, stage(",".join(one.endpoint for one in members)) as made:
        agent = made.launch(options=("--nnodes", "1"))
        (rank,) = made.up(0, 1)
        members[0].kill()  # its address is free now, and names this host
        second = made.launch(options=("--nnodes", "1"), run_id=f"{made.run_id}-b")
        (other,) = made.up(0, 1, run_id=f"{made.run_id}-b")
        for one in (agent, second):
            assert Nodes(made).member_of(one) is None
        made.finish([rank, other])
        assert [agent.ends(), second.ends()] == [0, 0], made.told()


def test_the_ranks_of_a_spare_that_steps_in_start_warm(nodes: Nodes) -> None:
    options = (*OPTIONS, "--warm-workers", "1", "--warm-imports", "json")
    agents = started(nodes, *NAMES, options=options)
    nodes.stage.up(0, 3)
    (spare,) = started(nodes, "spare", options=options)
    logs = nodes.stage.folder / "logs" / "spare"

    def noted(words: str) -> bool:
        return any(words in log.read_text() for log in logs.glob("*/agent-*.log"))

    nodes.stage.until_seen(lambda: noted("warm workers: 1 ready"), "the spare is warm")
    nodes.lose(agents[0])
    nodes.stage.up(1, 3)
    assert noted("warm workers: 1 of 1 ranks start warm"), nodes.stage.told()
    finished(nodes, 1, spare, *agents[1:])
