"""What a job is and how it is run: written once, by the agent that opened the attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class Current:
    """Which attempt of the job is the living one."""

    attempt: int
    since_utc: str
    extra: Mapping[str, Any] = field(default_factory=dict)


class Grow(Enum):
    """When nodes that wait are taken in while a round runs on fewer than MAX."""

    NOW = "now"
    AT_FAULT = "at-fault"
    WHEN_ASKED = "when-asked"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a job does about faults and arrivals, beyond `--max-restarts`. A limit of 0 is none.

    Windows are counted in seconds in which ranks ran, as reported by their nodes: no clocks are compared.

    Attributes:
        grow: when waiting nodes are taken in.
        grow_pause_s: how long a round runs at least before it is ended for growth.
        spares: nodes that are to wait beyond MAX; fewer are told of.
        restart_limit: restarts within `restart_window_s`; one more ends the job.
        progress_limit: rounds in a row that may end by a fault without getting beyond the best before.
        culprit_limit: a node that was to blame so often, of late, is replaced where a spare waits.
        node_loss_limit: losses of nodes within `restart_window_s`; one more ends the attempt.
    """

    grow: Grow = Grow.NOW
    grow_pause_s: float = 30.0
    spares: int = 0
    restart_limit: int = 0
    restart_window_s: float = 3600.0
    progress_limit: int = 0
    culprit_limit: int = 2
    node_loss_limit: int = 100
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What all agents of a job must agree on."""

    command: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    max_restarts: int
    lease_ttl_s: int
    kill_time_s: float
    outage_limit_s: float
    join_timeout_s: float
    last_call_s: float
    policy: Policy = Policy()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """Key `job`. `launch_id` names one launch by a scheduler, None when nothing tells."""

    spec: JobSpec
    launch_id: str | None
    created_utc: str
    extra: Mapping[str, Any] = field(default_factory=dict)
