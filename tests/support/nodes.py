"""Nodes of one machine: agents of a job that run etcd among themselves, and the loss of one with all it runs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from support.etcd_view import EtcdView
from support.stage import BOUND_S, Agent, Stage, stage

from nvrx_async.etcd.wire import grpc, messages, stubs

PORTS = range(20_000, 32_000, 2)
"""Below those that the kernel gives to connections: nobody takes the peer port beside one that was found free."""
CALL_S = 10.0


def member_endpoints(count: int = 3) -> list[str]:
    """Addresses for members, each with the next port free too."""
    found: list[str] = []
    while len(found) < count:
        port = random.choice(PORTS)
        with ExitStack() as stack, suppress(OSError):
            for wanted in (port, port + 1):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", wanted))
            if f"127.0.0.1:{port}" not in found:
                found.append(f"127.0.0.1:{port}")
    return found


class Nodes:
    """Agents on one stage whose `endpoint` lists the members' addresses."""

    def __init__(self, on: Stage) -> None:
        assert on.endpoint is not None
        self.stage = on
        self.endpoints = on.endpoint.split(",")

    def start(
        self, name: str, *program: str, options: Sequence[str], environment: dict[str, str] | None = None
    ) -> Agent:
        return self.stage.launch(*program, node=name, options=options, environment=environment)

    def member_of(self, agent: Agent) -> int | None:
        """Pid of the etcd that this agent runs."""
        return next((pid for pid in agent.processes() if b"--initial-cluster=" in _command(pid)), None)

    def member_up(self, agent: Agent) -> int:
        """Wait for its etcd: a node is in the job before its own member runs, where the others were there first."""

        pid = self.stage.until_seen(lambda: self.member_of(agent), f"{agent.node} runs a member")
        assert pid is not None
        return pid

    def endpoint_of(self, agent: Agent) -> str:
        pid = self.member_up(agent)
        return next(one for one in self.endpoints if f"://{one}\0".encode() in _command(pid))

    def data_of(self, agent: Agent) -> Path:
        pid = self.member_up(agent)
        flag = next(word for word in _command(pid).split(b"\0") if word.startswith(b"--data-dir="))
        return Path(os.fsdecode(flag.partition(b"=")[2])).parent

    def runs_leader(self, *agents: Agent) -> Agent:
        """The agent whose member leads the cluster."""
        for agent in agents:
            with grpc.insecure_channel(self.endpoint_of(agent)) as channel:
                status = stubs.MaintenanceStub(channel).Status(
                    messages.StatusRequest(), timeout=CALL_S, wait_for_ready=True
                )
                if status.header.member_id == status.leader:
                    return agent
        raise AssertionError(f"no leader\n{self.stage.told()}")

    def whole(self, *agents: Agent) -> None:
        """Wait until each of them runs a member with a vote. Nothing tells of that: look again and again."""

        def reached() -> bool:
            up = [agent for agent in agents if self.member_of(agent) is not None]
            try:
                listed = self.members(self.endpoint_of(up[0])) if up else []
            except grpc.RpcError:  # a node that came when the others were a cluster has a learner at first
                return False
            voting = [member for member in listed if member.name and not member.isLearner]
            return len(up) == len(voting) == len(agents)

        self.stage.until_seen(reached, f"{len(agents)} members with a vote")

    def follows(self, endpoint: str) -> None:
        """Wait until this member has caught up with the cluster: it answers a linearizable read only then."""

        def reached() -> bool:
            try:
                with grpc.insecure_channel(endpoint) as channel:
                    request = messages.RangeRequest(key=b"/nvrx")
                    stubs.KVStub(channel).Range(request, timeout=BOUND_S, wait_for_ready=True)
            except grpc.RpcError:  # it learns of another leader while the read waits
                return False
            return True

        self.stage.until_seen(reached, f"{endpoint} follows")

    def coordinates(self, *agents: Agent) -> Agent:
        """The agent that decides for the job."""
        job = EtcdView(self.endpoint_of(agents[0])).job(self.stage.run_id)
        found = [item for key, item in job.items() if "/election/" in key]
        leader = min(found, key=lambda item: item.created).value["node_id"]
        return next(agent for agent in agents if agent.node == leader)

    def members(self, endpoint: str) -> list[Any]:
        with grpc.insecure_channel(endpoint) as channel:
            answer = stubs.ClusterStub(channel).MemberList(messages.MemberListRequest(), timeout=CALL_S)
            return list(answer.members)

    def lose(self, agent: Agent) -> None:
        """All that the node runs dies at once: agent, keeper, ranks, etcd."""
        for pid in [
            agent.pid,
            *agent.processes(),
        ]:  # the agent first: a dead node tells nobody what died before it
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def forget(self) -> None:
        """Remove what lost nodes have left in memory for their return."""
        for endpoint in self.endpoints:
            port = endpoint.rpartition(":")[2]
            for base in (Path("/dev/shm"), Path(tempfile.gettempdir())):
                for folder in base.glob(f"nvrx-member-*-{port}-*"):
                    shutil.rmtree(folder, ignore_errors=True)  # the next agent on this host may be at it


@contextmanager
def nodes_of(endpoints: Sequence[str]) -> Iterator[Nodes]:
    """A stage for agents that run members at these addresses."""
    with stage(",".join(endpoints)) as made:
        nodes = Nodes(made)
        try:
            yield nodes
        finally:
            for agent in made.agents:
                nodes.lose(agent)
            nodes.forget()


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
