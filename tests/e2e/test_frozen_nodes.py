"""A whole node stands still, its ranks with it: nothing can kill them in time, and nothing they do later takes effect.

What no rule can fence is one rank that finishes the step it was in. It reaches nobody: the store of its round is gone,
and what it saves, the rounds that went on without it do not read.
"""

from __future__ import annotations

import json
import os
import signal
import time

from support.stage import Agent, Stage
from support.training import BOUND_S, Training
from support.worlds import Frozen, after_waking, misled, overlaps, result

TTL_S = 3
OPTIONS = (
    *("--nnodes", "2", "--nproc-per-node", "1", "--lease-ttl", str(TTL_S), "--max-restarts", "5"),
    *("--startup-grace", "0", "--warm-workers", "off"),
)


def freeze(agent: Agent) -> list[int]:
    """Stop all that the node runs."""
    stopped: list[int] = []
    while more := [pid for pid in agent.processes() if pid not in stopped]:
        for pid in more:
            os.kill(pid, signal.SIGSTOP)
        stopped += more
    return stopped


def test_what_a_woken_node_still_does_is_in_vain(job: Stage) -> None:
    training = Training(job)
    agents = {name: job.launch(*training.program, node=name, options=OPTIONS) for name in ("n0", "n1", "n2")}
    ranks = training.goes_on(0, 2)
    leads = next(entry for entry in ranks if entry.rank == 0)
    pids = freeze(agents[leads.node])
    frozen = [Frozen(leads.node, time.clock_gettime(time.CLOCK_BOOTTIME), frozenset(pids))]
    job.for_a_while(0.2)
    began = training.goes_on(leads.round + 1, 2)
    assert leads.node not in {entry.node for entry in began}
    zombie = job.watch(leads.pid)
    assert zombie.alive, "frozen, so that its keeper could not kill it"

    # It wakes before keeper and agent do, and gets as far as it can; what it would save is written in its stead.
    os.kill(leads.pid, signal.SIGCONT)
    late = {"round": leads.round, "step": 999_999, "state": 1}
    (training.folder / f"saved/{leads.round}.999999").write_text(json.dumps(late))
    job.for_a_while(1.0)
    for pid in pids:
        os.kill(pid, signal.SIGCONT) if pid != leads.pid else None
    job.all_gone([zombie], BOUND_S)
    agents[leads.node].says("this node is a spare")

    os.kill(began[0].pid, signal.SIGUSR1)
    training.goes_on(began[0].round + 1, 2)
    training.end()
    assert [agent.ends(bound_s=BOUND_S) for agent in agents.values()] == [0, 0, 0], job.told()
    entries = training.entries
    assert overlaps(entries, frozen) == []
    assert len(after_waking(entries, frozen)) <= 1, "at most the step that it was in"
    assert misled(training.folder, 2) == []
    steps, right = result(training.folder)
    assert right
    assert steps < 999_999
