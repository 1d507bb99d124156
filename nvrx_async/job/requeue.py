"""Who asks the scheduler for another start of the job: one agent, once in an attempt. Pure.

The claim is a key. It is created before anything runs, so that neither two agents nor one that is started again ask
twice; an agent that dies right after its claim asks not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvrx_async.etcd.types import CreatedAt, Exists, Put, Txn
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Ending, Outcome

REQUEUE = 75
_BY_THE_SCHEDULER = frozenset({Ending.PREEMPTED, Ending.TIME_LIMIT})


@dataclass(frozen=True, slots=True)
class Requeue:
    """Key `requeue`: this agent asks the scheduler for another start, by this command."""

    node_id: str
    claim: str
    command: str
    at_utc: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def is_due(outcome: Outcome) -> bool:
    """Whether such an attempt is to be started again: it was ended from outside, or exits with 75."""
    return outcome.ending in _BY_THE_SCHEDULER or outcome.exit_code == REQUEUE


def claimed(keys: AttemptKeys, requeue: Requeue) -> Txn:
    """The claim, which the first one gets."""
    return Txn((Exists(keys.outcome), CreatedAt(keys.requeue, 0)), (Put(keys.requeue, encode(requeue)),))
