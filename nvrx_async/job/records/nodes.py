"""Nodes and their agents: who is registered, who is known to be gone, who takes no seat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Process:
    """Which process an agent is, for a successor on its host to prove dead. `start_ticks`: 22nd in `/proc/<pid>/stat`.

    All that it starts has `tag` in its environment, and holds its sign of life in `net_namespace` ("" without one).
    """

    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
    tag: str = ""
    net_namespace: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """Key `nodes/<node_id>`, on the agent's lease.

    `incarnation` is new for each life (one lease) of an agent. `succeeds` names the incarnation on this
    host that this agent proved dead, nothing it started living on. `order` is the wished place among
    nodes (`--node-rank`, Slurm's node id), None when nobody said. `probe` is `host:port` where the agent
    answers questions of its peers and of `nvrx`, empty when it answers none.
    """

    node_id: str
    incarnation: str
    host: str
    address: str
    slots: int
    process: Process
    registered_utc: str
    succeeds: str | None = None
    order: int | None = None
    probe: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Struck:
    """Key `rounds/<n>/struck/<node_id>`: a recorded agent that nobody needs to ask any more, and why.

    `proven`: a later agent on its host proved it dead, and that nothing it had started lives.
    """

    node_id: str
    incarnation: str
    why: str
    proven: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Key `excluded/<node_id>`: this node takes no seat; `until_utc` is empty when nobody set an end."""

    node_id: str
    why: str
    by: str
    since_utc: str
    until_utc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
