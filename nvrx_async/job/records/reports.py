"""What agents write of a round: ready for it, over, what was seen, done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvrx_async.job.records.faults import FaultKind, RankEnd


@dataclass(frozen=True, slots=True)
class Join:
    """Key `rounds/<n>/join/<node_id>`: ready for n, and no process of this agent lives in a round before n."""

    node_id: str
    incarnation: str
    address: str
    master_port: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Key `interrupt/<n>`: the round is over, and who said so on what evidence."""

    by: str
    kind: FaultKind
    node_id: str
    reason: str
    at_utc: str
    rank: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """Key `rounds/<n>/faults/<node_id>`: what a member saw, once nothing of it runs in the round.

    `unfit`: a process of the round survives SIGKILL; the node cannot join again. `join`: it joins round n + 1 in
    the same step, on the same terms as by a key: who has no `nodes/` key of that incarnation does not.
    """

    node_id: str
    incarnation: str
    host: str
    ends: tuple[RankEnd, ...]
    kind: FaultKind | None = None
    detail: str = ""
    unfit: bool = False
    join: Join | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """Key `rounds/<n>/done/<node_id>`: all ranks of this agent exited with 0."""

    node_id: str
    incarnation: str
    extra: Mapping[str, Any] = field(default_factory=dict)
