"""What an agent that leaves a job writes. Pure."""

from __future__ import annotations

from nvrx_async.etcd.types import CreatedAt, Delete, Empty, ModifiedAt, Put, Scope, Txn
from nvrx_async.faults import signal_name
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Outcome
from nvrx_async.rounds.own import Registration

SIGNAL_BASE = 128
"""An agent that was stopped by signal n exits with this plus n."""


def departure(registered: Registration, lease: int) -> Txn:
    """Give up registration and candidacy, if the registration is still this agent's."""
    node = registered.keys.node(registered.node.node_id)
    candidacy = registered.keys.election(lease)
    gone = (Delete(Scope(node)), Delete(Scope(candidacy)))
    return Txn(when=(CreatedAt(node, registered.revision),), then=gone)


def told_to_stop(signal: int, number: int, utc: str, launch_id: str | None) -> Outcome:
    """The outcome of a job whose last agent was sent this signal in round `number`."""
    reason = f"told to by {signal_name(signal)}"
    return Outcome(
        success=False,
        exit_code=SIGNAL_BASE + signal,
        reason=reason,
        round=number,
        decided_utc=utc,
        launch_id=launch_id,
    )


def last_word(keys: AttemptKeys, at_current: ModifiedAt, outcome: Outcome) -> Txn:
    """The outcome of a job that everybody has left.

    It does not compare `round`: several agents that leave at once move it under each other, and with nobody
    registered no round can go on.
    """
    return Txn(
        when=(at_current, CreatedAt(keys.outcome, 0), Empty(keys.nodes)),
        then=(Put(keys.outcome, encode(outcome)),),
    )
