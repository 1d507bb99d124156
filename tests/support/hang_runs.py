"""Jobs with gloo, 4 ranks on 2 agents, in whose rounds a rank hangs; and what became of it."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from support.hanging_training import orders
from support.stage import Stage

PROGRAM = Path(__file__).with_name("hanging_training.py")
AGENTS, RANKS = 2, 4
_CULPRIT = re.compile(r"rank (\d+) on ")
_STARTS_AND_ENDS = ("imports", "init", "teardown")


@dataclass
class Row:
    """What came of one kind."""

    found: int = 0
    named: int = 0
    restarted: int = 0
    late_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def repeated(on: Stage, kind: str, times: int, timeout_s: float, startup_s: float) -> Row:
    """One job whose first `times` rounds hang."""
    drawn = random.Random(kind)
    culprits = [drawn.randrange(RANKS) for _ in range(times)]
    limits = ("--hang-timeout", str(timeout_s), "--hang-startup-timeout", str(startup_s))
    options = ("--nnodes", str(AGENTS), "--nproc-per-node", str(RANKS // AGENTS), *limits)
    agents = [
        on.launch(
            str(PROGRAM),
            kind,
            ",".join(map(str, culprits)),
            node=f"n{number}",
            options=(*options, "--startup-grace", "3", "--max-restarts", str(times)),
            environment={"OMP_NUM_THREADS": "1", "NVRX_FAULTS": orders(kind, culprits)},
        )
        for number in range(AGENTS)
    ]
    row = Row()
    each_s = (startup_s if kind in _STARTS_AND_ENDS else timeout_s) + 30
    try:
        codes = [agent.ends(bound_s=each_s * (times + 1)) for agent in agents]
    except AssertionError as error:
        row.wrong.append(str(error))
        return row
    held = on.held()
    for number, rank in enumerate(culprits):
        judge(row, on, held, number, rank)
    if codes != [0] * AGENTS:
        row.wrong.append(f"{kind}: exit codes {codes}\n{on.told()}")
    return row


def judge(row: Row, on: Stage, held: dict, number: int, culprit: int) -> None:
    """What became of one round."""
    end = held.get(f"0/rounds/{number}/end")
    root = end.value["root"] if end else {"kind": "nothing", "sentence": "the round did not end"}
    named = _CULPRIT.search(root["sentence"])
    found = root["kind"] == "hang"
    right = named is not None and int(named[1]) == culprit
    row.found += found
    row.named += found and right
    ran = (f"0/rounds/{number + 1}/done/", f"0/rounds/{number + 1}/faults/")
    row.restarted += any(key.startswith(ran) for key in held)
    if not (found and right):
        row.wrong.append(f"round {number}, rank {culprit} hung: {root['kind']}: {root['sentence']}")
    late = [
        one["late_s"]
        for path in (on.folder / "logs").rglob(f"round_{number}/rank_*/hang.json")
        if (one := json.loads(path.read_text()))["hung"]
    ]
    if late:
        row.late_s.append(min(late))
