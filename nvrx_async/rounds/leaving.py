"""Transactions of an agent that leaves a job. Pure."""

from __future__ import annotations

from nvrx_async.etcd.types import CreatedAt, Delete, Empty, ModifiedAt, Put, Scope, Txn
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Outcome
from nvrx_async.rounds.own import Registration


def departure(registered: Registration, lease: int) -> Txn:
    """Give up registration and candidacy, if the registration is still this agent's."""
    node = registered.keys.node(registered.node.node_id)
    candidacy = registered.keys.election(lease)
    gone = (Delete(Scope(node)), Delete(Scope(candidacy)))
    return Txn(when=(CreatedAt(node, registered.revision),), then=gone)


def last_word(keys: AttemptKeys, at_current: ModifiedAt, outcome: Outcome) -> Txn:
    """The outcome of a job that everybody has left.

    It does not compare `round`: several agents that leave at once move it under each other, and with nobody
    registered no round can go on.
    """
    return Txn(
        when=(at_current, CreatedAt(keys.outcome, 0), Empty(keys.nodes)),
        then=(Put(keys.outcome, encode(outcome)),),
    )
