"""Names of all keys of a job in etcd (`docs/design.md`, Keys). The only place that spells them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from nvrx_async.etcd.types import Scope
from nvrx_async.job.errors import InvalidNameError

ROOT = "/nvrx/v1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def checked_name(what: str, name: str) -> str:
    """Return `name` if it can be part of a key and of a file name.

    Raises:
        InvalidNameError: it holds a slash, starts with a dot, or is longer than 128 characters.
    """
    if not _NAME.fullmatch(name):
        raise InvalidNameError(what, name)
    return name


def current(run_id: str) -> str:
    """The key that names the job's attempt."""
    return f"{ROOT}/{run_id}/current"


def job_scope(run_id: str) -> Scope:
    """Everything of a job, all its attempts."""
    return Scope(f"{ROOT}/{run_id}/", prefix=True)


@dataclass(frozen=True, slots=True)
class AttemptKeys:
    """Keys of one attempt."""

    run_id: str
    attempt: int
    base: str = field(init=False, repr=False, compare=False)
    """Prefix of all keys of the attempt, with its slash."""
    current: str = field(init=False, repr=False, compare=False)
    """The key that names the job's attempt."""
    outcome: str = field(init=False, repr=False, compare=False)
    """Final verdict; whoever sees it stops."""
    round: str = field(init=False, repr=False, compare=False)
    """The round: number, phase, seal token. Its mod revision guards every decision on it."""
    nodes: Scope = field(init=False, repr=False, compare=False)
    """All registered agents."""
    interrupts: Scope = field(init=False, repr=False, compare=False)
    """Interrupts of the last rounds: one watch tells an agent of all to come."""

    def __post_init__(self) -> None:
        """Spell once what is looked up at every decision."""
        base = f"{ROOT}/{self.run_id}/{self.attempt}/"
        spelled: dict[str, str | Scope] = {
            "base": base,
            "current": current(self.run_id),
            "outcome": f"{base}outcome",
            "round": f"{base}round",
            "nodes": Scope(f"{base}nodes/", prefix=True),
            "interrupts": Scope(f"{base}interrupt/", prefix=True),
        }
        for name, value in spelled.items():
            object.__setattr__(self, name, value)

    @classmethod
    def holding(cls, key: str) -> AttemptKeys:
        """The attempt that a key of it belongs to."""
        _, _, _, run_id, attempt, _ = key.split("/", 5)
        return cls(run_id, int(attempt))

    @property
    def job(self) -> str:
        """Specification, equal for all agents."""
        return f"{self.base}job"

    @property
    def requeue(self) -> str:
        """Who asks the scheduler for another start; created once."""
        return f"{self.base}requeue"

    @property
    def any_node(self) -> Scope:
        """Whether an agent is registered."""
        return Scope(self.nodes.key, prefix=True, first=True)

    @property
    def elections(self) -> Scope:
        """All candidates; the one created first leads."""
        return Scope(f"{self.base}election/", prefix=True)

    def node(self, node_id: str) -> str:
        """Registration of one agent, on its lease."""
        return f"{self.nodes.key}{node_id}"

    def election(self, lease: int, turn: int = 0) -> str:
        """Candidacy of the agent with this lease; `turn` counts its resignations."""
        return f"{self.elections.key}{lease:x}-{turn}"

    def round_scope(self, number: int) -> Scope:
        """Everything of one round."""
        return Scope(f"{self.base}rounds/{number}/", prefix=True)

    def joins(self, number: int) -> Scope:
        """All agents ready for the round."""
        return Scope(f"{self.base}rounds/{number}/join/", prefix=True)

    def join(self, number: int, node_id: str) -> str:
        """One agent is ready for the round, and no process of it lives in an earlier one."""
        return f"{self.joins(number).key}{node_id}"

    def world(self, number: int, token: str, shard: int) -> str:
        """One shard of the world that was sealed under this token."""
        return f"{self.worlds(number, token).key}{shard}"

    def worlds(self, number: int, token: str) -> Scope:
        """All shards of a sealed world."""
        return Scope(f"{self.base}rounds/{number}/seal/{token}/world/", prefix=True)

    def assignment(self, number: int, token: str, node_id: str) -> str:
        """What one agent starts in the round."""
        return f"{self.base}rounds/{number}/seal/{token}/assign/{node_id}"

    def assignments(self, number: int, token: str) -> Scope:
        """What all agents of a sealed world start in the round."""
        return Scope(self.assignment(number, token, ""), prefix=True)

    def interrupt(self, number: int) -> str:
        """Created once: the round is over."""
        return f"{self.interrupts.key}{number}"

    def fault(self, number: int, node_id: str) -> str:
        """What one agent saw in the round, written when its ranks are gone."""
        return f"{self.base}rounds/{number}/faults/{node_id}"

    def done(self, number: int, node_id: str) -> str:
        """All ranks of one agent finished well."""
        return f"{self.base}rounds/{number}/done/{node_id}"

    def stop(self, number: int) -> str:
        """Somebody wants all ranks of the round to stop."""
        return f"{self.base}rounds/{number}/stop"

    def stop_vote(self, number: int, node_id: str) -> str:
        """How far the ranks of one agent have come, held there until the stop is decided."""
        return f"{self.base}rounds/{number}/stops/{node_id}"

    def grow(self, number: int) -> str:
        """A rank of the round says that nodes which wait may be taken in."""
        return f"{self.base}rounds/{number}/grow"

    def end(self, number: int) -> str:
        """Verdict on a round: root, next level, reason."""
        return f"{self.base}rounds/{number}/end"

    def all_struck(self, number: int) -> Scope:
        """All agents recorded in the seal of this round that nobody needs to ask any more."""
        return Scope(f"{self.base}rounds/{number}/struck/", prefix=True)

    def struck(self, number: int, node_id: str) -> str:
        """A recorded agent that nobody needs to ask any more."""
        return f"{self.all_struck(number).key}{node_id}"

    @property
    def controls(self) -> Scope:
        """All commands of people, asked and answered."""
        return Scope(f"{self.base}control/", prefix=True)

    def control(self, command_id: str) -> str:
        """One command of a person."""
        return f"{self.controls.key}{command_id}"

    @property
    def exclusions(self) -> Scope:
        """All nodes that take no seat."""
        return Scope(f"{self.base}excluded/", prefix=True)

    def excluded(self, node_id: str) -> str:
        """One node that takes no seat, and why."""
        return f"{self.exclusions.key}{node_id}"


class Told(Enum):
    """Keys that tell of moments of a round."""

    ROUND = "round"
    INTERRUPT = "interrupt"
    REPORT = "report"
    DONE = "done"


_OF_ROUND = {"faults": Told.REPORT, "done": Told.DONE}


def told_by(run_id: str, key: str) -> tuple[int, Told, int | None] | None:
    """Attempt, kind and number of a round that a key tells of, None for any other; `round` names its number inside."""
    prefix = f"{ROOT}/{run_id}/"
    if not key.startswith(prefix):
        return None
    match key[len(prefix) :].split("/"):
        case [attempt, "round"]:
            return int(attempt), Told.ROUND, None
        case [attempt, "interrupt", number]:
            return int(attempt), Told.INTERRUPT, int(number)
        case [attempt, "rounds", number, "faults" | "done" as kind, _]:
            return int(attempt), _OF_ROUND[kind], int(number)
        case _:
            return None
