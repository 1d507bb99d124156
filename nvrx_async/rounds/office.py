"""All that a coordinator writes, and what each write compares.

Every transaction compares the candidacy, the attempt and the round it was decided on, so that a deposed
coordinator's does nothing; one that rests on a node's absence also compares that its key still is as seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nvrx_async.etcd.types import (
    Compare,
    CreatedAt,
    Delete,
    KeyValue,
    ModifiedAt,
    Operation,
    Put,
    Scope,
    Txn,
)
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    FIRST_PROBE,
    PROBES,
    REGISTERED,
    SEATS_PER_SHARD,
    STOP,
    Assignment,
    End,
    Exclusion,
    Interrupt,
    Node,
    Outcome,
    Phase,
    Round,
    Seat,
    Spare,
    Stop,
    Struck,
    WorldShard,
)
from nvrx_async.rounds.commands import Answer, with_told
from nvrx_async.rounds.limits import handed_on
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.seal import Sealed
from nvrx_async.rounds.stop_state import stop_as_extra
from nvrx_async.rounds.world import seal_of

ROUNDS_KEPT = 200
INTERRUPTS_AT_ONCE = 32
"""So many interrupts are kept at least, and so many are forgotten in one step."""

PER_TXN = 100
"""Writes, and compares of absent nodes, in one transaction: leaves room below etcd's 128 for the others."""


@dataclass(frozen=True, slots=True)
class Office:
    """The candidacy that was elected: `key`, created at `create_revision`. `mirror` tells revisions to compare."""

    keys: AttemptKeys
    key: str
    create_revision: int
    mirror: Mirror

    def run_again(self, now_round: Round, sealed: Sealed, seal: tuple[int, str], utc: str) -> Txn:
        """The round that runs with the seats of the one before; `seal` is where they stand."""
        return self._txn(then=(Put(self.keys.round, encode(runs_again(now_round, sealed, seal, utc))),))

    def seal(self, now_round: Round, sealed: Sealed, token: str, utc: str) -> tuple[Txn, ...]:
        """Assignments and world under their token, and in the last step the round that runs with it."""
        keys, number = self.keys, now_round.number
        running = replace(_running(now_round, sealed, token, utc), sealed_in=number)
        puts = [
            Put(
                keys.assignment(number, token, seat.node_id),
                encode(self._assignment(now_round, seat, sealed)),
            )
            for seat in sealed.seats
        ]
        puts += [Put(keys.world(number, token, shard.shard), encode(shard)) for shard in _shards(sealed)]
        return self._in_steps(puts, sealed.absent, (Put(keys.round, encode(running)),))

    def interrupt(self, lost: str, interrupt: Interrupt, number: int) -> Txn:
        """The round is over for the loss of this node."""
        key = self.keys.interrupt(number)
        return self._txn(CreatedAt(key, 0), self._as_seen(lost), then=(Put(key, encode(interrupt)),))

    def strike(self, struck: Struck, now_round: Round) -> Txn:
        """This recorded agent, which is gone, need not be asked for promises while its seal holds."""
        seal = seal_of(now_round)
        key = self.keys.struck(seal[0] if seal is not None else now_round.number, struck.node_id)
        return self._txn(self._as_seen(struck.node_id), then=(Put(key, encode(struck)),))

    def interrupt_asked(self, interrupt: Interrupt, number: int) -> Txn:
        """The round is over since somebody asked for that."""
        key = self.keys.interrupt(number)
        return self._txn(CreatedAt(key, 0), then=(Put(key, encode(interrupt)),))

    def answer(self, now_round: Round, asked: KeyValue, answer: Answer) -> Txn:
        """A command's answer with its effect, once: it must still be as it was asked."""
        keys, extra = self.keys, now_round.extra
        command_id = asked.key[len(keys.controls.key) :]
        if answer.stop is not None:
            extra = {**extra, STOP: stop_as_extra(answer.stop)}
        told = replace(now_round, extra=with_told(extra, command_id, answer.command))
        then: list[Operation] = [
            Put(asked.key, encode(answer.command)),
            Put(keys.round, encode(told)),
        ]
        if answer.exclude is not None:
            then.append(Put(keys.excluded(answer.exclude.node_id), encode(answer.exclude)))
        if answer.readmit is not None:
            then.append(Delete(Scope(keys.excluded(answer.readmit))))
        return self._txn(ModifiedAt(asked.key, asked.mod_revision), then=tuple(then))

    def stop(self, now_round: Round, stop: Stop) -> Txn:
        """How far an agreed stop has come, told to all in the round; one that is interrupted stops by itself."""
        keys = self.keys
        told = replace(now_round, extra={**now_round.extra, STOP: stop_as_extra(stop)})
        return self._txn(
            CreatedAt(keys.interrupt(now_round.number), 0), then=(Put(keys.round, encode(told)),)
        )

    def next_round(
        self,
        now_round: Round,
        end: End,
        following: Round,
        absent: Sequence[str],
        barred: Exclusion | None = None,
    ) -> Txn:
        """The verdict on a round, and the next one, forming or running, without whom the verdict bars.

        Old rounds are forgotten. One of the first `absent` that came back meanwhile will still report.
        """
        keys, number = self.keys, now_round.number
        told = replace(following, verdict=end)
        then: list[Operation] = [Put(keys.end(number), encode(end)), Put(keys.round, encode(told))]
        if barred is not None:
            then.append(Put(keys.excluded(barred.node_id), encode(barred)))
        if number >= ROUNDS_KEPT:
            then.append(Delete(keys.round_scope(number - ROUNDS_KEPT)))
        if number % INTERRUPTS_AT_ONCE == 0:  # seldom, since all agents are told of it
            first = max(0, number - 2 * INTERRUPTS_AT_ONCE)
            then += [Delete(Scope(keys.interrupt(old))) for old in range(first, number - INTERRUPTS_AT_ONCE)]
        return self._txn(*(self._as_seen(node_id) for node_id in absent[:PER_TXN]), then=tuple(then))

    def success(self, now_round: Round, outcome: Outcome) -> Txn:
        """All finished: nobody may have interrupted the round meanwhile."""
        return self._txn(
            CreatedAt(self.keys.interrupt(now_round.number), 0), then=self._outcome(now_round, outcome)
        )

    def failure(
        self, now_round: Round, outcome: Outcome, end: End | None, absent: Sequence[str]
    ) -> tuple[Txn, ...]:
        """An outcome other than success, decided on these members' absence."""
        judged = [Put(self.keys.end(now_round.number), encode(end))] if end else []
        told = replace(now_round, verdict=end)
        return self._in_steps([], absent, (*self._outcome(told, outcome), *judged))

    def resignation(self, candidacy: str, incarnation: str, lease: int) -> Txn:
        """Stand behind all other candidates, by a new candidacy."""
        return Txn(
            when=(CreatedAt(self.key, self.create_revision),),
            then=(Delete(Scope(self.key)), Put(candidacy, encode(Spare("", incarnation)), lease)),
        )

    def _assignment(self, now_round: Round, seat: Seat, sealed: Sealed) -> Assignment:
        node = self.mirror.record(Node, self.keys.node(seat.node_id))
        if node is not None and node.incarnation != seat.incarnation:
            node = None
        return Assignment(
            round=now_round.number,
            seat=seat,
            world_size=_world_size(sealed.seats),
            group_world_size=len(sealed.seats),
            master_address=sealed.master.address,
            master_port=sealed.master.master_port,
            process=node.process if node is not None else None,
            extra=handed_on(now_round.extra)
            | (_registered(node) if node is not None else {})
            | _first_probe(sealed),
        )

    def _outcome(self, now_round: Round, outcome: Outcome) -> tuple[Operation, ...]:
        ended = replace(now_round, phase=Phase.ENDED)
        return Put(self.keys.outcome, encode(outcome)), Put(self.keys.round, encode(ended))

    def _in_steps(
        self, puts: Sequence[Put], absent: Sequence[str], last: tuple[Operation, ...]
    ) -> tuple[Txn, ...]:
        """As many transactions as etcd's limits ask for. Nothing counts before `last`, which the last one writes."""
        steps = max(1, -(-max(len(puts), len(absent)) // PER_TXN))
        txns = []
        for step in range(steps):
            part = slice(step * PER_TXN, (step + 1) * PER_TXN)
            then = (*puts[part], *(last if step == steps - 1 else ()))
            txns.append(self._txn(*(self._as_seen(node_id) for node_id in absent[part]), then=then))
        return tuple(txns)

    def _txn(self, *when: Compare, then: tuple[Operation, ...]) -> Txn:
        guard = (
            CreatedAt(self.key, self.create_revision),
            self._at(current(self.keys.run_id)),
            self._at(self.keys.round),
            CreatedAt(self.keys.outcome, 0),
        )
        return Txn((*guard, *when), then)

    def _as_seen(self, node_id: str) -> ModifiedAt:
        return self._at(self.keys.node(node_id))

    def _at(self, key: str) -> ModifiedAt:
        return ModifiedAt(key, self.mirror.revision(key))


def runs_again(now_round: Round, sealed: Sealed, seal: tuple[int, str], utc: str) -> Round:
    """The round as it runs with the seats of the one before; `seal` is where they stand."""
    return replace(_running(now_round, sealed, seal[1], utc), sealed_in=seal[0])


def _registered(node: Node) -> dict[str, Any]:
    """What outlives the registration of who is seated, for people who ask later."""
    succeeds = {"succeeds": node.succeeds} if node.succeeds else {}
    return {REGISTERED: {"at_utc": node.registered_utc, **succeeds}}


def _running(now_round: Round, sealed: Sealed, token: str, utc: str) -> Round:
    return replace(
        now_round,
        phase=Phase.RUNNING,
        running_utc=utc,
        token=token,
        master_address=sealed.master.address,
        master_port=sealed.master.master_port,
        world_size=_world_size(sealed.seats),
        nodes=len(sealed.seats),
    )


def _world_size(seats: tuple[Seat, ...]) -> int:
    return seats[-1].first_rank + seats[-1].slots


def _first_probe(sealed: Sealed) -> dict[str, str]:
    """Whom to ask where a world is too large for everybody to know it."""
    probe = sealed.probes.get(sealed.seats[0].node_id)
    return {FIRST_PROBE: probe} if probe and len(sealed.seats) > 1 else {}


def _shards(sealed: Sealed) -> list[WorldShard]:
    """The world in pieces below 1 MiB; spares stand in the first."""
    count = -(-len(sealed.seats) // SEATS_PER_SHARD)
    return [
        WorldShard(
            shard=i,
            shards=count,
            seats=sealed.seats[i * SEATS_PER_SHARD : (i + 1) * SEATS_PER_SHARD],
            spares=sealed.spares if i == 0 else (),
            extra={PROBES: dict(sealed.probes)} if i == 0 and sealed.probes else {},
        )
        for i in range(count)
    ]
