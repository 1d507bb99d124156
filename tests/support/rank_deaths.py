"""Jobs in which one rank dies once. Each raises AssertionError with all that was printed if it goes wrong."""

from __future__ import annotations

import re

from support.stage import TRAINING, Stage

KINDS = ("exit", "raise", "sigkill", "segfault")
STEPS = ("--steps", "60", "--save-every", "20", "--crash-step", "50")
RANKS_PER_AGENT = 2
TRAINS_S = 90.0
ABORTED = "terminate called without an active exception"


def play(on: Stage, agents: int, kind: str) -> None:
    """A job of ranks without torch whose last rank fails in round 0; in round 1 all must run, and end it."""
    count = RANKS_PER_AGENT * agents
    program = on.ranks("--fail", kind, "--fail-rank", str(count - 1), "--finish-from", "1")
    _run(on, agents, *program)
    again = on.tell("up", 1, count)
    assert [one.rank for one in again] == list(range(count)), on.told()
    assert {one.world_size for one in again} == {count}, on.told()
    assert not any(one.round > 1 for one in on.news), on.told()


def train(on: Stage, agents: int, kind: str | None) -> str:
    """The training of the examples, in which the last rank dies (None: nobody does); its last line, the result.

    The result may be told in two rounds: once in a while a process that used torch's DistributedDataParallel aborts
    at the interpreter's end ("terminate called without an active exception"), also after it had told its result.
    Then all ranks rightly run again, and must tell the same.
    """
    crash = ("--crash-rank", str(RANKS_PER_AGENT * agents - 1), "--crash-kind", kind) if kind else ()
    _run(on, agents, str(TRAINING), "--out", str(on.folder / "out"), *STEPS, *crash)
    assert (on.folder / "out" / "crashed").exists() == bool(kind), on.told()
    results = [found for agent in on.agents for found in re.findall(r"result: .*", agent.text)]
    assert len(set(results)) == 1, on.told()
    aborted = any(ABORTED in agent.text for agent in on.agents)
    assert len(results) in ((1, 2) if aborted else (1,)), on.told()
    return str(results[0])


def _run(on: Stage, agents: int, *program: str) -> None:
    options = ("--nnodes", str(agents), "--nproc-per-node", str(RANKS_PER_AGENT), "--max-restarts", "2")
    quiet = {"OMP_NUM_THREADS": "1"}
    started = [
        on.launch(*program, node=f"n{number}", options=options, environment=quiet) for number in range(agents)
    ]
    codes = [agent.ends(bound_s=TRAINS_S) for agent in started]
    assert codes == [0] * agents, on.told()
