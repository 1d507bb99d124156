"""What is tried again and what is not, as users reported it: rows of A3, each as a whole job."""

from __future__ import annotations

import os
import re
import signal

import pytest
from support.nvrx_cli import nvrx
from support.stage import Stage

ONE = ("--nproc-per-node", "1", "--lease-ttl", "3", "--warm-workers", "off")
ELASTIC = ("--nnodes", "1:4", *ONE, "--rdzv-conf", "last_call_timeout=0.1", "--grow-pause", "0")


def script(on: Stage, text: str) -> str:
    path = on.folder / "script.py"
    path.write_text(text)
    return str(path)


def test_52_what_fails_before_it_is_ready_has_a_budget_of_its_own(job: Stage) -> None:
    text = "import os\nprint('starts', flush=True)\nos._exit(7)"
    agent = job.launch(script(job, text), options=(*ONE, "--max-restarts", "100"))
    assert agent.ends(bound_s=60) == 1, job.told()
    assert len(re.findall(r"^\S*.*\bstarts$", agent.text, re.MULTILINE)) == 3, job.told()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("turns", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_55_quick_departures_are_billed_apart_from_restarts(job: Stage, turns: int) -> None:
    stays = job.launch(node="n0", options=ELASTIC)
    job.up(0, 1)
    for turn in range(turns):
        comes = job.launch(node="n1", options=ELASTIC)
        job.up(2 * turn + 1, 2)
        comes.signal(signal.SIGTERM)
        ranks = job.up(2 * turn + 2, 1)
        assert comes.ends() == 143, job.told()
    ledger = job.held()["0/round"].value["ledger"]
    assert (ledger["restarts"], ledger["membership"]) == (0, turns), ledger
    for word in ("status", "describe"):
        shown = nvrx(word, job.run_id, etcd=job.endpoint)
        assert f"0 of 0 restarts, {turns} lost nodes" in shown.out, shown
    job.finish(ranks)
    assert stays.ends() == 0, "although --max-restarts is 0" + job.told()


COUNTS = """
import os, signal, time
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("count", count, os.environ["NVRX_ROUND"], flush=True)
if count == "3":
    raise SystemExit
if os.environ["RANK"] == "0":
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1e6)
"""


def test_57_the_restart_count_is_the_same_everywhere(job: Stage) -> None:
    options = ("--nnodes", "2", *ONE, "--max-restarts", "3", "--startup-grace", "0")
    agents = [job.launch(script(job, COUNTS), node=name, options=options) for name in ("n0", "n1")]
    assert [agent.ends(bound_s=60) for agent in agents] == [0, 0], job.told()
    for agent in agents:
        counts = re.findall(r"count (\d) (\d)$", agent.text, re.MULTILINE)
        assert counts == [(str(one), str(one)) for one in range(4)], job.told()


GROWS = """
import sys, time
from pathlib import Path
import nvrx_async
saved = Path(sys.argv[1]) / "saved"
start = int(saved.read_text()) if saved.exists() else 0
print("goes on at step", start, flush=True)
with nvrx_async.connect() as rank:
    for step in rank.steps(1 << 30, start=start):
        time.sleep(0.01)
        if rank.should_stop(step):
            if rank.rank == 0:
                saved.write_text(str(step))
            break
        if (saved.parent / "end").exists():
            break
"""


def test_59_steps_grow_though_agents_keep_arriving(job: Stage) -> None:
    options = (*ELASTIC[:-1], "1")
    program = script(job, GROWS)
    agents = [job.launch(program, str(job.folder), node="n0", options=options)]
    agents[0].says("round 0 runs")
    for number in (1, 2, 3):
        agents.append(job.launch(program, str(job.folder), node=f"n{number}", options=options))
        agents[0].says(rf"round {number} runs: {number + 1} ranks on {number + 1} nodes")
        agents[0].says(rf"(?s)(goes on at step \d+.*){{{number + 1}}}")
    (job.folder / "end").touch()
    assert [agent.ends() for agent in agents] == [0, 0, 0, 0], job.told()
    steps = [int(one) for one in re.findall(r"goes on at step (\d+)", agents[0].text)]
    assert steps[0] == 0
    assert steps == sorted(set(steps)), "each round goes on where the one before had saved"


BLOCKS = """
import os
for name in ("history.jsonl", "summary.txt"):
    os.unlink(f"{LOGS}/{name}") if os.path.exists(f"{LOGS}/{name}") else None
    os.mkfifo(f"{LOGS}/{name}")
os.mkfifo(os.environ["TORCHELASTIC_ERROR_FILE"])
print("blocked", flush=True)
raise SystemExit(3)
"""


def test_60_files_of_the_agent_that_never_open_delay_neither_verdict_nor_exit(job: Stage) -> None:
    """FIFOs that nobody reads or writes stand where the agent keeps its history and summary, and reads an error."""
    logs = job.folder / "logs"
    text = f"LOGS = {str(logs / 'fifo')!r}\n{BLOCKS}"
    options = (*ONE, "--log-dir", str(logs), "--startup-grace", "0", "--max-restarts", "0")
    agent = job.launch(script(job, text), run_id="fifo", options=options)
    agent.says("blocked")
    agent.says("the summary could not be written to .*: its disk does not answer")
    agent.says("job fifo failed: --max-restarts is 0")
    assert agent.ends() == 1, job.told()
    assert job.left() == []


@pytest.mark.parametrize("blocks", ["save", "progress file"])
def test_60_a_save_that_nobody_takes_never_blocks_the_agent(job: Stage, blocks: str) -> None:
    fifo = job.folder / "checkpoint"
    os.mkfifo(fifo)
    text = "import sys\nprint('saves', flush=True)\nopen(sys.argv[1], 'w')"
    more = ("--progress-file", str(fifo)) if blocks == "progress file" else ()
    options = (*ONE, "--workers-stop-timeout", "1", *more)
    agent = job.launch(script(job, text), str(fifo), options=options)
    agent.says("saves")
    job.for_a_while(6.0)  # two leases
    assert any("/nodes/" in key for key in job.held()), "it renews its lease"
    job.ask("stop")
    assert agent.ends() == 143, job.told()
    assert job.left() == []
