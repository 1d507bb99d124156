"""When to renew a lease, when to try again, when it is over: a pure decision on send times.

A renewal is credited with the time it was *sent*: etcd restarts the lease's life when it receives it, which
is later, so what is counted from the send time never lasts longer here than there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

RETRY_S = 0.15
"""After a failed renewal: an etcd that restarts within the TTL must find the next one waiting."""

_JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Renewals:
    """What is known of a lease's renewals; times are seconds of the session's clock.

    `acknowledged_sent_at_s` is the send time of the last acknowledged one (the grant counts as the first),
    `failed_at_s` when the last attempt since then ended without an answer.
    """

    ttl_s: float
    acknowledged_sent_at_s: float
    failed_at_s: float | None = None
    urgent: bool = False

    @property
    def lapses_at_s(self) -> float:
        """From then on the lease may be over on etcd's side."""
        return self.acknowledged_sent_at_s + self.ttl_s

    def acknowledged(self, sent_at_s: float) -> Renewals:
        """The renewal sent then was answered."""
        return Renewals(self.ttl_s, max(sent_at_s, self.acknowledged_sent_at_s))

    def failed(self, now_s: float) -> Renewals:
        """The attempt in flight ended without an answer; one that comes later is not credited."""
        return replace(self, failed_at_s=now_s, urgent=False)

    def hurried(self) -> Renewals:
        """Somebody asks for a renewal at once."""
        return replace(self, urgent=True)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_s`."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Renew:
    """Send one renewal now, and give it up after `timeout_s`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The TTL has passed since the last acknowledged send: never renew again."""


Step: TypeAlias = Wait | Renew | Lapsed


def next_step(
    renewals: Renewals, now_s: float, *, jitter: float, longest_s: float, patient: bool = False
) -> Step:
    """Decide with no renewal in flight.

    `jitter` from 0 to 1 spreads the agents' renewals over the last tenth before TTL/3; `longest_s` bounds one
    attempt. An attempt also ends early enough for two more within the TTL, and never outlives the lease. With
    `patient` only etcd says that a lease is over: one that it kept while it was away is renewed after its TTL too.
    """
    left_s = renewals.lapses_at_s - now_s
    if left_s <= 0:
        if not patient:
            return Lapsed()
        left_s = renewals.ttl_s
    due_s = renewals.acknowledged_sent_at_s + renewals.ttl_s / 3 * (1 - _JITTER * jitter)
    if renewals.failed_at_s is not None:
        due_s = renewals.failed_at_s + RETRY_S * (1 - _JITTER * jitter)
    if renewals.urgent:
        due_s = now_s
    if now_s < due_s:
        return Wait(due_s if patient else min(due_s, renewals.lapses_at_s))
    return Renew(min(longest_s, renewals.ttl_s / 4, left_s))
