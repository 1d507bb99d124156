"""All that a registered member writes, and what each write compares.

Every transaction compares the attempt and this agent's registration; what speaks of a round, the round too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nvrx_async.etcd.types import (
    Compare,
    CreatedAt,
    Delete,
    Empty,
    Exists,
    ModifiedAt,
    Operation,
    Put,
    Scope,
    Txn,
)
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    MARKS,
    Done,
    Fault,
    Interrupt,
    Join,
    Mark,
    Node,
    Outcome,
    Spare,
    Stop,
    StopVote,
)
from nvrx_async.rounds.mirror import Mirror


@dataclass(frozen=True, slots=True)
class Registration:
    """The attempt this agent is in, as what, on which lease, and since which revision of etcd.

    `mirror` tells revisions to compare.
    """

    keys: AttemptKeys
    node: Node
    revision: int
    lease: int
    mirror: Mirror

    @property
    def key(self) -> str:
        """Where it stands."""
        return self.keys.node(self.node.node_id)

    def join(self, port: int, utc: str) -> Join:
        """Ready for a round, and no process of this agent lives in one before it."""
        node = self.node
        marks = {f"{Mark.JOINED.value}_utc": utc}
        return Join(node.node_id, node.incarnation, node.address, port, extra={MARKS: marks})

    def joins(self, number: int, join: Join) -> Txn:
        """Nothing but a join, while the round is as seen."""
        put = Put(self.keys.join(number, join.node_id), encode(join), self.lease)
        return self._txn(self._round_as_seen, then=(put,))

    def interrupt(self, number: int, interrupt: Interrupt) -> Txn:
        """The round is over; the first to say so is heard, no coordinator is needed."""
        key = self.keys.interrupt(number)
        return self._txn(self._round_as_seen, CreatedAt(key, 0), then=(Put(key, encode(interrupt)),))

    def done(self, number: int, extra: Mapping[str, Any]) -> Txn:
        """All ranks of this agent finished well."""
        done = Done(self.node.node_id, self.node.incarnation, {**self.node.extra, **extra})
        return self._txn(self._round_as_seen, then=(Put(self.keys.done(number, done.node_id), encode(done)),))

    def report(self, number: int, report: Fault) -> Txn:
        """What became of this agent's ranks in an interrupted round; the same key joins the next one."""
        told = replace(report, extra={**self.node.extra, **report.extra})
        put = Put(self.keys.fault(number, self.node.node_id), encode(told))
        return self._txn(self._round_as_seen, Exists(self.keys.interrupt(number)), then=(put,))

    def stop(self, number: int, wish: Stop) -> Txn:
        """The wish that all ranks stop; several may have it, that changes nothing."""
        put = Put(self.keys.stop(number), encode(wish))
        return self._txn(*self._goes_on(number), then=(put,))

    def allow_growth(self, number: int) -> Txn:
        """A rank of this agent says that nodes which wait may be taken in."""
        put = Put(self.keys.grow(number), encode(Spare(self.node.node_id, self.node.incarnation)))
        return self._txn(*self._goes_on(number), then=(put,))

    def vote(self, number: int, step: int | None) -> Txn:
        """How far this agent's ranks have come; they are held there."""
        vote = StopVote(self.node.node_id, self.node.incarnation, step)
        put = Put(self.keys.stop_vote(number, vote.node_id), encode(vote))
        return self._txn(*self._goes_on(number), then=(put,))

    def departure(self) -> Txn:
        """This agent is gone, of its own will."""
        gone = (Scope(self.key), Scope(self.keys.election(self.lease)))
        return Txn((CreatedAt(self.key, self.revision),), tuple(Delete(scope) for scope in gone))

    def last_word(self, outcome: Outcome) -> Txn:
        """The outcome of an attempt that everybody left, this agent too.

        It does not compare `round`: several agents that leave at once move it under each other, and with nobody
        registered no round can go on.
        """
        keys = self.keys
        when = (self._attempt_as_seen, CreatedAt(keys.outcome, 0), Empty(keys.nodes))
        return Txn(when, (Put(keys.outcome, encode(outcome)),))

    @property
    def _attempt_as_seen(self) -> ModifiedAt:
        attempt = current(self.keys.run_id)
        return ModifiedAt(attempt, self.mirror.revision(attempt))

    @property
    def _round_as_seen(self) -> ModifiedAt:
        return ModifiedAt(self.keys.round, self.mirror.revision(self.keys.round))

    def _goes_on(self, number: int) -> tuple[Compare, ...]:
        return (self._round_as_seen, CreatedAt(self.keys.interrupt(number), 0))

    def _txn(self, *when: Compare, then: tuple[Operation, ...]) -> Txn:
        return Txn((self._attempt_as_seen, CreatedAt(self.key, self.revision), *when), then)
