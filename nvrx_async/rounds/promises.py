"""What agents promise each other while etcd does not answer (`docs/design.md`, etcd out of reach). Pure.

Ranks run past T only while every recorded agent has promised, lately, not to call their agent fenced. A yes is that
promise: for `SETTLE_S` + kill time from the moment it is given. Whoever got it from all counts from the
moment in which it asked, so that its ranks are dead when the first promise ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from nvrx_async.job.records import JobSpec
from nvrx_async.rounds.fencing import MARGIN_S, SETTLE_S

MOST_ASKED = 256
"""Above so many recorded agents nobody asks: each would have to ask all others every second."""
UNANSWERED_S = 0.5
"""A renewal that is unanswered for so long says that etcd may be away for me too."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A recorded agent, and the `host:port` at which it answers questions; empty if it answers none."""

    node_id: str
    incarnation: str
    probe: str


@dataclass(frozen=True, slots=True)
class Question:
    """May the ranks of this agent run on? `before_t`: it was asked before its lease's T."""

    attempt: int
    round: int
    token: str
    node_id: str
    incarnation: str
    before_t: bool

    def to_wire(self, peer: Peer) -> dict[str, Any]:
        """As it travels to one peer; another incarnation must not answer in its place."""
        return {
            "attempt": self.attempt,
            "round": self.round,
            "token": self.token,
            "node_id": self.node_id,
            "incarnation": self.incarnation,
            "before_t": self.before_t,
            "asked": peer.incarnation,
        }

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> tuple[Question, str]:
        """The question and the incarnation that is asked.

        Raises:
            ValueError: something is missing or of another type.
        """
        fields: Mapping[str, type] = {
            "attempt": int,
            "round": int,
            "token": str,
            "node_id": str,
            "incarnation": str,
            "before_t": bool,
        }
        for name, kind in {**fields, "asked": str}.items():
            if type(raw.get(name)) is not kind:
                raise ValueError(f"a question for a promise without {name!r} ({kind.__name__})")
        return cls(**{name: raw[name] for name in fields}), raw["asked"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes is a promise. `reason` is a clause behind the name of who answers."""

    yes: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Contact:
    """What an agent knows of its own way to etcd, on its own clock.

    `failing_since_s`: when the first renewal was tried that was not acknowledged, for a lease that is lost too, None
    when the last one was. `gap_ended_s`: send time of the last acknowledged renewal, or grant, before which there
    was none for more than half a TTL.
    """

    failing_since_s: float | None = None
    gap_ended_s: float | None = None


def shares_outage(question: Question, contact: Contact, now_s: float, ttl_s: float) -> str | None:
    """Why the one who is asked may be without etcd as the asker is; None when it certainly is not.

    Else a node that is cut off alone would train on beside those who give its ranks away.
    """
    if question.before_t:
        return "it was asked before T"
    if contact.failing_since_s is not None and now_s - contact.failing_since_s >= UNANSWERED_S:
        return "etcd does not answer it either"
    if contact.gap_ended_s is not None and now_s - contact.gap_ended_s <= ttl_s:
        return "etcd did not answer it until a moment ago"
    return None


def lasts_until_s(asked_at_s: float) -> float:
    """T of the ranks when everybody who was asked then said yes; they are dead a kill time later."""
    return asked_at_s + SETTLE_S - MARGIN_S


@dataclass(slots=True)
class Book:
    """What this process has promised, and whom it has given up. It outlives lives of the agent."""

    promised_until_s: dict[str, float] = field(default_factory=dict)
    _given_up: dict[str, int] = field(default_factory=dict)

    def promise(self, incarnation: str, now_s: float, spec: JobSpec) -> None:
        """Call this agent not fenced for a while."""
        until_s = now_s + SETTLE_S + spec.kill_time_s
        self.promised_until_s[incarnation] = max(until_s, self.promised_until_s.get(incarnation, 0.0))

    def give_up(self, number: int, incarnations: frozenset[str]) -> None:
        """These members of round `number` were called fenced in a transaction, which may take effect late."""
        self._given_up.update(dict.fromkeys(incarnations, number))

    def gave_up(self, incarnation: str, number: int) -> bool:
        """Whether this agent was called fenced, as a member of this round or a later one."""
        return self._given_up.get(incarnation, -1) >= number

    @property
    def outstanding(self) -> Mapping[str, float]:
        """Until when each agent must not be called fenced."""
        return MappingProxyType(self.promised_until_s)
