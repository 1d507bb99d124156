"""A stop that all ranks agree on: who wants it, how far it and each agent has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class StopPhase(Enum):
    """How far an agreed stop has come."""

    ASKED = "asked"
    AGREED = "agreed"
    REFUSED = "refused"


class Purpose(Enum):
    """What an agreed stop is for, weakest first: one that is under way may be put to a stronger use."""

    LEAVE = "leave"
    """An agent leaves; the others may go on without it."""
    RENEW = "renew"
    """Another round follows: restart, growth, a node that is drained."""
    FINISH = "finish"
    """The job ends."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Key `rounds/<n>/stop`: somebody wants all ranks to stop.

    The answer stands in the round itself (`extra`, key STOP), which every agent follows.
    """

    by: str
    reason: str
    phase: StopPhase = StopPhase.ASKED
    step: int = -1
    purpose: Purpose = Purpose.LEAVE
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopVote:
    """Key `rounds/<n>/stops/<node_id>`: no rank of this agent has asked about a step above `step`.

    None: its ranks do not ask. Until the stop is decided none of them goes on at a higher step.
    """

    node_id: str
    incarnation: str
    step: int | None
    extra: Mapping[str, Any] = field(default_factory=dict)
