"""What the coordinator decides when a round or the attempt is over: cause, next level, exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nvrx_async.job.records.faults import FaultKind, RankEnd


class Level(Enum):
    """How deep the next try cuts, mildest first."""

    IN_PROCESS = "in_process"
    IN_JOB = "in_job"
    REPLACE_NODE = "replace_node"
    REQUEUE = "requeue"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Root:
    """The fault chosen as cause of a round's end. `culprit` is False when nobody can be blamed.

    `fingerprint` is equal for two occurrences of the same error at the same place, None when the error
    may go away by itself.
    """

    kind: FaultKind
    sentence: str
    node_id: str | None = None
    host: str | None = None
    culprit: bool = True
    end: RankEnd | None = None
    fingerprint: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """Key `rounds/<n>/end`: verdict on a round."""

    number: int
    root: Root
    level: Level
    reason: str
    ended_utc: str
    extra: Mapping[str, Any] = field(default_factory=dict)


class Ending(Enum):
    """In which way an attempt ended."""

    FINISHED = "finished"
    FAILED = "failed"
    INFRASTRUCTURE = "infrastructure"
    CANCELLED = "cancelled"
    """By a person: Ctrl-C, a terminal that went away, `nvrx stop`."""
    PREEMPTED = "preempted"
    """By SIGTERM, which schedulers send."""
    TIME_LIMIT = "time_limit"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Key `outcome`: the attempt's final verdict; all agents exit with `exit_code`."""

    success: bool
    exit_code: int
    reason: str
    round: int
    decided_utc: str
    launch_id: str | None = None
    root: Root | None = None
    ending: Ending | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
