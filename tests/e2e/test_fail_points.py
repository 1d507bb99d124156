"""An agent dies, or stands still, between any two effects of its machines: the job ends as if nothing had happened.

Two nodes and a spare. The agent that coordinates and runs ranks is hurt at one point; meanwhile the job goes through a
fault of a rank, a restart and its end. There is at most one world at any time, and nothing is exempt from that.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support.stage import Agent, Stage
from support.training import BOUND_S, Training
from support.worlds import misled, overlaps, result

TTL_S = 3
OPTIONS = (
    *("--nnodes", "2", "--nproc-per-node", "1", "--lease-ttl", str(TTL_S), "--max-restarts", "9"),
    *("--startup-grace", "0", "--rdzv-conf", "last_call_timeout=0.1", "--warm-workers", "off"),
)

FEW = (
    ("Commit:seal:1", "kill"),
    ("Commit:report:1", "freeze"),
    ("StartRanks:0", "freeze"),
    ("Commit:end:0", "kill"),
    ("Commit:outcome:0", "freeze"),
)
POINTS = (
    *("Commit:enter:0", "Commit:enter:1", "Rely:0", "Rely:1", "Campaign:0", "Campaign:1"),
    *("ReservePort:0", "ReservePort:1", "Commit:join:0", "Commit:join:1", "Commit:seal:0", "Commit:seal:1"),
    *(
        "StartRanks:0",
        "StartRanks:1",
        "Commit:interrupt:0",
        "Commit:interrupt:1",
        "StopRanks:0",
        "StopRanks:1",
    ),
    *("Commit:report:0", "Commit:report:1", "Commit:end:0", "Commit:end:1"),
    *(
        "ReservePort:0#2",
        "ReservePort:1#2",
        "Commit:seal:0#2",
        "Commit:seal:1#2",
        "StartRanks:0#2",
        "StartRanks:1#2",
    ),
    *("Commit:done:0", "Commit:done:1", "Commit:outcome:0", "Commit:outcome:1", "Finish:0"),
)
"""All that `test_a_recorded_run…` sees, those of a restart a second time."""
CASES = [
    pytest.param(point, act, id=f"{act}-{point}", marks=[] if (point, act) in FEW else [pytest.mark.soak])
    for point in POINTS
    for act in ("kill", "freeze")
]


class Job(Training):
    """The three agents, and what they were told to do so far."""

    def __init__(self, on: Stage, faults: str) -> None:
        super().__init__(on)
        self.thawed_at = 0
        self.victim = self.start("n0", {"NVRX_FAULTS": faults})
        self.until(lambda: self.victim.said("waiting: ") or self.struck, "the first one is there")
        self.others = [self.start("n1", {}), self.start("n2", {})]

    def start(self, name: str, environment: dict[str, str]) -> Agent:
        return self.stage.launch(*self.program, node=name, options=OPTIONS, environment=environment)

    @property
    def struck(self) -> bool:
        """Whether the point has come: it is dead, or stopped."""
        return not self.victim.process.alive or self.frozen

    @property
    def frozen(self) -> bool:
        with suppress(OSError):
            stat = Path(f"/proc/{self.victim.pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    def ranks_of_victim_live(self) -> bool:
        return any(Path(f"/proc/{entry.pid}").exists() for entry in self.entries if entry.node == "n0")

    def thaw(self) -> None:
        """Once its ranks are dead by T."""
        self.stage.for_a_while(TTL_S + 1.0)
        assert self.frozen
        assert not self.ranks_of_victim_live(), self.stage.told()
        self.thawed_at = len(self.victim.text)
        self.victim.signal(signal.SIGCONT)


def through(job: Job) -> None:
    """A rank fails, all restart, the training ends; a frozen agent goes on once its ranks are dead."""
    steps = job.goes_on(0, 2)
    for agent in job.others:  # who comes after the end would begin the next attempt
        agent.says("this node is ")
    hit = min(
        steps, key=lambda entry: entry.node
    )  # the victim's while it has one: its agent interrupts the round
    os.kill(hit.pid, signal.SIGUSR1)
    job.goes_on(hit.round + 1, 2)
    if job.frozen:
        job.thaw()
        job.until(
            lambda: "this node is " in job.victim.text[job.thawed_at :], "it is a spare or a member again"
        )
    job.end()
    if job.victim.process.alive:
        job.until(lambda: job.struck, "the point comes")
    if job.frozen:  # at the very end: the others wait until it is dead, or do not need it
        job.thaw()
    assert [agent.ends(bound_s=BOUND_S) for agent in job.others] == [0, 0], job.stage.told()


def judge(job: Job) -> None:
    entries = job.entries
    assert overlaps(entries) == [], job.stage.told()
    assert misled(job.folder, 2) == []
    assert result(job.folder)[1], "the result is not that of an undisturbed run"
    job.until(lambda: not held(job), "no registration is left, once the lease of a dead agent has ended")


def held(job: Job) -> list[str]:
    return [key for key in job.stage.held() if "/nodes/" in key or "/election/" in key]


def test_a_recorded_run_passes_no_point_but_those_that_are_tried(job: Stage) -> None:
    ran = Job(job, "agent:tell@effect=*")
    through(ran)
    assert ran.victim.ends() == 0, job.told()
    judge(ran)
    (log,) = (job.folder / "logs" / "n0").glob("*/agent-*.log")
    passed = {
        line.partition("fail point: ")[2] for line in log.read_text().splitlines() if "fail point: " in line
    }
    tried = {point.partition("#")[0] for point in POINTS}
    assert passed <= tried
    # On a busy machine the other agent may see its rank fall, and interrupt, before this one does; and word of the
    # outcome may come before the answer to the commit that wrote it, so that nothing is left to be done after it.
    assert tried - passed <= {"Commit:interrupt:1", "Commit:outcome:1"}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("point", "act"), CASES)
def test_an_agent_struck_between_two_effects_costs_the_job_nothing(job: Stage, point: str, act: str) -> None:
    ran = Job(job, f"agent:{act}@effect={point}")
    through(ran)
    assert ran.victim.ends(bound_s=BOUND_S) == (-signal.SIGKILL if act == "kill" else 0), job.told()
    judge(ran)
