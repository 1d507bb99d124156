"""The round and its world: what the coordinator writes and every agent follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nvrx_async.job.records.nodes import Process
from nvrx_async.job.records.verdicts import End


class Phase(Enum):
    """Where a round is."""

    FORMING = "forming"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the attempt has spent and seen, carried from round to round.

    Attributes:
        restarts: faults of a training that ran.
        start_failures: faults before a rank was ready.
        membership: nodes or agents lost.
        last_fingerprint: of the last fault that was not of membership.
        restart_ages_s: seconds of training since each restart within the window, oldest first.
        loss_ages_s: the same of lost nodes.
        best_step: highest step that a rank reported, -1 for none.
        best_file_s: latest time at which the progress file was written, 0 for never.
        standstill: rounds in a row that ended by a fault without progress.
        culprits: rounds in which a node was to blame, of late, by node id.
    """

    restarts: int = 0
    start_failures: int = 0
    membership: int = 0
    last_fingerprint: str | None = None
    restart_ages_s: tuple[float, ...] = ()
    loss_ages_s: tuple[float, ...] = ()
    best_step: int = -1
    best_file_s: float = 0.0
    standstill: int = 0
    culprits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Round:
    """Key `round`. `token` names the seal of a running round; `why` tells people why this round is.

    `sealed_in`: the round under which the seal of `token` (while forming: of `previous_token`) stands, an earlier
    one when nobody moved; -1: this one (while forming: the one before). The store of rank 0 listens on `master_*`.
    `verdict` is the one on the round before, of an ended round its own: all follow this key, none reads another.
    """

    number: int
    phase: Phase
    opened_utc: str
    running_utc: str = ""
    token: str | None = None
    previous_token: str | None = None
    sealed_in: int = -1
    master_address: str = ""
    master_port: int = 0
    world_size: int = 0
    nodes: int = 0
    ledger: Ledger = Ledger()
    why: str = ""
    verdict: End | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a world. Ranks first_rank … first_rank + slots - 1 are its own."""

    node_id: str
    incarnation: str
    host: str
    group_rank: int
    first_rank: int
    slots: int


@dataclass(frozen=True, slots=True)
class Spare:
    """An agent that waits, ready, without ranks."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class WorldShard:
    """Key `rounds/<n>/seal/<token>/world/<shard>`: a slice of the world, at most SEATS_PER_SHARD seats."""

    shard: int
    shards: int
    seats: tuple[Seat, ...]
    spares: tuple[Spare, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)


SEATS_PER_SHARD = 4000
"""Keeps a shard below 1 MiB, etcd's value limit being 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Key `rounds/<n>/seal/<token>/assign/<node_id>`: all that this incarnation needs to start its ranks.

    `process` is the agent's: this key outlives its lease, so a later agent on the host can prove it dead.
    """

    round: int
    seat: Seat
    world_size: int
    group_world_size: int
    master_address: str
    master_port: int
    process: Process | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
