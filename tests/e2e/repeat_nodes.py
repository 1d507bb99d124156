"""How often a job survives the loss of any node, etcd's members being on its nodes: `make repeat-nodes`.

    python tests/e2e/repeat_nodes.py [--nodes N] [--leaders N]

Three nodes and a spare, each an agent of this machine. A lost node loses everything at once: agent, keeper, ranks, etcd
member. Victims take turns: whose member leads etcd, who decides for the job, who runs rank 0, any other. Then, in one
job, the etcd that leads dies again and again, alone: no rank may end. What went wrong is printed in full, and counted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PATHS = [str(path) for path in (ROOT, ROOT / "launcher", ROOT / "telemetry", TESTS)]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from support.nodes import Nodes, member_endpoints, nodes_of  # noqa: E402 - found by the lines above
from support.stage import Agent  # noqa: E402 - see above

VICTIMS = ("etcd's leader", "coordinator", "rank 0", "another")
OPTIONS = ("--nnodes", "3", "--nproc-per-node", "1")
NAMES = ("n0", "n1", "n2")
RENEWED_S = 3.0
"""Half of the default TTL: renewals come after a third of it."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Lose nodes again and again; count what survives.")
    parser.add_argument("--nodes", type=int, default=30, help="nodes to lose, one a job (default 30)")
    parser.add_argument(
        "--leaders", type=int, default=10, help="leading etcds to kill in one job (default 10)"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is cleaned up
    times: dict[str, list[float]] = {victim: [] for victim in VICTIMS}
    good = 0
    for number, victim in zip(range(arguments.nodes), itertools.cycle(VICTIMS), strict=False):
        try:
            with nodes_of(member_endpoints()) as made:
                times[victim].append(lose(made, victim))
        except AssertionError as error:
            print(f"run {number}, {victim}: {error}", file=sys.stderr, flush=True)
        else:
            good += 1
    print(f"nodes lost, training went on: {good} of {arguments.nodes}")
    for victim, found in times.items():
        if found:
            middle, longest = statistics.median(found), max(found)
            print(
                f"  {victim:<16}{len(found):>3} runs, all ranks again after {middle:.2f} s, at most {longest:.2f}"
            )
    killed = 0
    if arguments.leaders:
        try:
            with nodes_of(member_endpoints()) as made:
                killed = kill_leaders(made, arguments.leaders)
        except AssertionError as error:
            print(error, file=sys.stderr, flush=True)
        print(f"leading etcd killed alone, no rank ended: {killed} of {arguments.leaders}")
    return 0 if (good, killed) == (arguments.nodes, arguments.leaders) else 1


def lose(nodes: Nodes, victim: str) -> float:
    """Lose one node of three with a spare; seconds until all ranks were up again. They end the job then."""
    on = nodes.stage
    program = on.ranks("--finish-from", "1")
    agents = [nodes.start(name, *program, options=OPTIONS) for name in NAMES]
    ranks = on.up(0, 3)
    spare = nodes.start("spare", *program, options=OPTIONS)
    spare.says("this node is spare")
    lost = _victim(nodes, agents, ranks[0].node, victim)
    begun_s = time.monotonic()
    nodes.lose(lost)
    on.until(lambda: len({one.rank for one in on.news if one.round > 0}) == 3, "three ranks are up again")
    took_s = time.monotonic() - begun_s
    codes = [agent.ends() for agent in (*agents, spare) if agent is not lost]
    assert codes == [0, 0, 0], on.told()
    left = [line for line in on.left() if "--initial-cluster" in line]
    assert not left, f"{left}\n{on.told()}"
    return took_s


def _victim(nodes: Nodes, agents: list[Agent], first: str, victim: str) -> Agent:
    leader, coordinator = nodes.runs_leader(*agents), nodes.coordinates(*agents)
    if victim == VICTIMS[0]:
        return leader
    if victim == VICTIMS[1]:
        return coordinator
    if victim == VICTIMS[2]:
        return next(agent for agent in agents if agent.node == first)
    return next((one for one in agents if one not in (leader, coordinator) and one.node != first), agents[-1])


def kill_leaders(nodes: Nodes, count: int) -> int:
    """Kill the etcd that leads, alone, `count` times in one job; how often all ranks stayed.

    Between two of them every agent has time for a renewal: elections one after another are an outage.
    """
    on = nodes.stage
    agents = [nodes.start(name, options=OPTIONS) for name in NAMES]
    ranks = on.up(0, 3)
    processes = [on.watch(one.pid) for one in ranks]
    killed = 0
    for _ in range(count):
        leader = nodes.runs_leader(*agents)
        again = leader.text.count("member is up again")
        pid = nodes.member_of(leader)
        assert pid is not None, on.told()
        os.kill(pid, signal.SIGKILL)
        on.until(
            lambda leader=leader, again=again: leader.text.count("member is up again") > again, "it is back"
        )
        on.for_a_while(RENEWED_S)
        assert all(one.alive for one in processes), on.told()
        killed += 1
    on.finish(ranks)
    assert [agent.ends() for agent in agents] == [0, 0, 0], on.told()
    assert {one.round for one in on.news} == {0}, on.told()
    return killed


if __name__ == "__main__":
    sys.exit(main())
