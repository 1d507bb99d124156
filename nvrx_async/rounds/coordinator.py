"""The coordinator machine: what the elected agent decides for the job.

It seals worlds, notices lost members, judges why a round ended, opens the next one or writes the outcome.
Every commit compares its candidacy, the attempt and the round it was decided on: a deposed coordinator's
commit does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_async.etcd.types import (
    Compare,
    CreatedAt,
    Delete,
    ModifiedAt,
    Operation,
    Put,
    Scope,
    Txn,
)
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    SEATS_PER_SHARD,
    Assignment,
    Current,
    Done,
    End,
    Fault,
    FaultKind,
    Interrupt,
    JobSpec,
    Join,
    Level,
    Node,
    Outcome,
    Phase,
    Root,
    Round,
    Seat,
    Spare,
    WorldShard,
)
from nvrx_async.rounds.effects import Campaign, Commit, Decision, Effect, Notify, Waiting
from nvrx_async.rounds.events import Committed, Deposed, Elected, Event, Now, Refused
from nvrx_async.rounds.fencing import SETTLE_S, Judge, is_present
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.ladder import Verdict, next_level
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.root import find_root
from nvrx_async.rounds.seal import Forming, Sealed, Wait, seal, unclear
from nvrx_async.rounds.sentences import node_fault

FAILED = 1
NEVER_READY = 3
REQUEUE = 75
ROUNDS_KEPT = 200
PUTS_PER_TXN = 100
"""Leaves room below etcd's 128 operations for compares and the round itself."""


@dataclass(frozen=True, slots=True)
class _World:
    """The last sealed world. `sealed_at` is its revision."""

    seats: tuple[Seat, ...] = ()
    spares: tuple[Spare, ...] = ()
    sealed_at: int = 0

    @property
    def recorded(self) -> dict[str, str]:
        """Incarnation of each agent that the world names, by node id."""
        named: tuple[Seat | Spare, ...] = (*self.seats, *self.spares)
        return {one.node_id: one.incarnation for one in named}


@dataclass(frozen=True, slots=True)
class _Office:
    """Leadership: the candidacy that was elected, and how often this agent has resigned before."""

    keys: AttemptKeys
    key: str
    create_revision: int


class Coordinator:
    """See the module. Idle unless elected; one object for one life of the agent."""

    def __init__(self, me: Identity, spec: JobSpec, mirror: Mirror) -> None:
        self._me = me
        self._spec = spec
        self._mirror = mirror
        self._office: _Office | None = None
        self._turn = 0
        self._seals = 0
        self._in_flight: str | None = None
        self._resigned_to: str | None = None
        self._missing_since_s: dict[tuple[str, str], float] = {}
        self._forming_since_s: dict[int, float] = {}
        self._told: str | None = None
        self._effects: list[Effect] = []
        self._wake_at_s: float | None = None

    # What must be known -------------------------------------------------------------------------------

    def scopes(self) -> frozenset[Scope]:
        """All nodes, and the rounds that decisions are about: O(nodes), at one agent."""
        office = self._office
        again = {Scope(self._resigned_to)} if self._resigned_to is not None else set()
        if office is None:
            return frozenset(again)
        keys = office.keys
        wanted = again | {Scope(current(keys.run_id)), Scope(keys.outcome), Scope(keys.round), keys.nodes}
        now_round = self._mirror.record(Round, keys.round)
        if now_round is not None:
            # The next round's scope is opened before it begins: members join it with their reports.
            other = now_round.number - 1 if now_round.phase is Phase.FORMING else now_round.number + 1
            wanted |= {keys.round_scope(now_round.number)}
            if other >= 0:
                wanted |= {keys.round_scope(other)}
        return frozenset(wanted)

    # What is known ------------------------------------------------------------------------------------

    def observe(self, event: Event, now: Now) -> None:
        """Note an event."""
        del now
        match event:
            case Elected(key=key, create_revision=create_revision):
                self._office = _Office(AttemptKeys.holding(key), key, create_revision)
            case Deposed(key=key) if self._office is not None and self._office.key == key:
                self._office, self._in_flight = None, None
            case Committed(tag=tag) | Refused(tag=tag) if tag == self._in_flight:
                self._in_flight = None
            case _:
                pass

    def _note_missing(self, now: Now, nodes: dict[str, Node], world: _World) -> None:
        """Since when each member of the last world is not seen: only time that this coordinator lived through."""
        missing = {(seat.node_id, seat.incarnation) for seat in world.seats if not is_present(seat, nodes)}
        self._missing_since_s = {who: self._missing_since_s.get(who, now.s) for who in missing}

    # What to do ---------------------------------------------------------------------------------------

    def decide(self, now: Now) -> Decision:
        """What to do; see `Machine`."""
        self._effects, self._wake_at_s = [], None
        self._campaign_again()
        reason = self._decide(now)
        return Decision(tuple(self._effects), self._wake_at_s, reason)

    def _campaign_again(self) -> None:
        """After a resignation took effect, stand for election with the new candidacy."""
        held = self._mirror.get(self._resigned_to) if self._resigned_to is not None else None
        if held is not None:
            self._office, self._resigned_to = None, None
            self._effects.append(Campaign(held.key, held.create_revision))

    def _decide(self, now: Now) -> str:
        office = self._office
        if office is None:
            return "another agent leads"
        if self._in_flight is not None:
            return f"{self._in_flight} is being committed"
        if not self._mirror.knows(*self.scopes()):
            return "leads; reading the attempt"
        keys = office.keys
        living = self._mirror.record(Current, current(keys.run_id))
        now_round = self._mirror.record(Round, keys.round)
        if self._mirror.get(keys.outcome) is not None or living is None or living.attempt != keys.attempt:
            return "the attempt is over"
        if now_round is None or now_round.phase is Phase.ENDED:
            return "the attempt has no round to lead"
        nodes, world = self._nodes(keys), self._world(keys)
        self._note_missing(now, nodes, world)
        judge = self._judge(now, nodes, world, keys)
        if not judge.recorded and self._recorded_agent_lives(nodes, world):
            return self._resign(office)
        if now_round.phase is Phase.FORMING:
            return self._form(now, now_round, office, judge)
        return self._watch_over(now, now_round, office, judge)

    def _judge(self, now: Now, nodes: Mapping[str, Node], world: _World, keys: AttemptKeys) -> Judge:
        """What this coordinator's word counts: see `fencing`."""
        if not world.seats:
            return Judge(recorded=True, older_than_seal=True)
        mine = next((node for node in nodes.values() if node.incarnation == self._me.incarnation), None)
        if mine is None:
            return Judge(recorded=False, older_than_seal=False)
        named = world.recorded.get(mine.node_id)
        held = self._mirror.get(keys.node(mine.node_id))
        if named == mine.incarnation:
            return Judge(
                recorded=True, older_than_seal=held is not None and held.create_revision < world.sealed_at
            )
        # A restarted agent takes its predecessor's seat once no promise the dead one gave can still count.
        seat_at_s = self._me.started_s + SETTLE_S + self._spec.kill_time_s
        if named is None or mine.succeeds != named:
            return Judge(recorded=False, older_than_seal=False)
        if now.s < seat_at_s:
            self._wake(seat_at_s)
        return Judge(recorded=now.s >= seat_at_s, older_than_seal=False)

    def _recorded_agent_lives(self, nodes: Mapping[str, Node], world: _World) -> bool:
        return any(
            node_id in nodes and nodes[node_id].incarnation == incarnation
            for node_id, incarnation in world.recorded.items()
        )

    def _resign(self, office: _Office) -> str:
        """Stand behind all other candidates: a recorded one leads, since it knows what it promised."""
        if self._resigned_to is None:
            self._turn += 1
            self._resigned_to = office.keys.election(self._me.lease, self._turn)
            return "about to resign: a recorded agent is there to lead"
        txn = Txn(
            when=(CreatedAt(office.key, office.create_revision),),
            then=(
                Delete(Scope(office.key)),
                Put(self._resigned_to, encode(Spare("", self._me.incarnation)), self._me.lease),
            ),
        )
        self._commit("resign", txn)
        return "a recorded agent is there to lead"

    # Forming ------------------------------------------------------------------------------------------

    def _form(self, now: Now, now_round: Round, office: _Office, judge: Judge) -> str:
        number = now_round.number
        since_s = self._forming_since_s.setdefault(number, now.s)
        forming = self._forming(number, since_s, office.keys)
        result = seal(now.s, forming, judge, self._spec)
        if isinstance(result, Sealed):
            return self._seal(now, now_round, office, result)
        if result.expired:
            return self._give_up(now, now_round, office, result)
        # Before anybody joined there is nothing to say: agents join within moments.
        self._wait(result, f"round {number}: {result.reason}" if forming.joins else self._told)
        return result.reason

    def _forming(self, number: int, since_s: float, keys: AttemptKeys) -> Forming:
        previous = self._world(keys).seats
        before = number - 1
        return Forming(
            number=number,
            since_s=since_s,
            joins=self._mirror.records(Join, keys.joins(number)),
            nodes=self._nodes(keys),
            registered={
                held.key[len(keys.nodes.key) :]: held.create_revision
                for held in self._mirror.under(keys.nodes)
            },
            previous=previous,
            reports=self._reports(keys, before),
            done=self._done(keys, before),
            missing_since_s={node_id: since for (node_id, _), since in self._missing_since_s.items()},
        )

    def _seal(self, now: Now, now_round: Round, office: _Office, sealed: Sealed) -> str:
        """Write assignments and world under a new token, then make the round run with that token."""
        self._seals += 1
        keys, number = office.keys, now_round.number
        token = f"{self._me.incarnation}-{self._seals}"
        running = Round(
            number=number,
            phase=Phase.RUNNING,
            opened_utc=now_round.opened_utc,
            running_utc=now.utc,
            token=token,
            previous_token=now_round.previous_token,
            world_size=_world_size(sealed.seats),
            nodes=len(sealed.seats),
            ledger=now_round.ledger,
            why=now_round.why,
        )
        puts = [
            Put(keys.assignment(number, token, seat.node_id), encode(_assignment(number, seat, sealed)))
            for seat in sealed.seats
        ]
        puts += [Put(keys.world(number, token, shard.shard), encode(shard)) for shard in _shards(sealed)]
        absent = [self._at(keys.node(node_id)) for node_id in sealed.absent]
        batches = max(1, -(-max(len(puts), len(absent)) // PUTS_PER_TXN))
        cut = [slice(i * PUTS_PER_TXN, (i + 1) * PUTS_PER_TXN) for i in range(batches)]
        txns = [self._txn(office, *puts[part], when=tuple(absent[part])) for part in cut]
        last = txns.pop()
        txns.append(Txn(last.when, (*last.then, Put(keys.round, encode(running)))))
        self._commit("seal", *txns)
        return f"sealing round {number}: {sealed.reason}"

    def _give_up(self, now: Now, now_round: Round, office: _Office, wait: Wait) -> str:
        never = now_round.number == 0
        reason = f"{wait.reason} within {self._spec.join_timeout_s:g} s"
        return self._end_attempt(
            now,
            now_round,
            office,
            exit_code=NEVER_READY if never else REQUEUE,
            reason=f"never started: {reason}" if never else f"too few nodes to go on: {reason}",
        )

    # Running ------------------------------------------------------------------------------------------

    def _watch_over(self, now: Now, now_round: Round, office: _Office, judge: Judge) -> str:
        keys, number = office.keys, now_round.number
        nodes, seats = self._nodes(keys), self._world(keys).seats
        done = {seat.node_id for seat in seats if _is_of(self._done(keys, number).get(seat.node_id), seat)}
        lost = [seat for seat in seats if not is_present(seat, nodes)]
        interrupt = self._mirror.record(Interrupt, keys.interrupt(number))
        if interrupt is not None:
            return self._close(now, now_round, office, judge, interrupt)
        working = [seat for seat in lost if seat.node_id not in done]
        if working:
            return self._interrupt_lost(now, now_round, office, working[0])
        if len(done) == len(seats):
            return self._succeed(now, now_round, office)
        return f"round {number} runs"

    def _interrupt_lost(self, now: Now, now_round: Round, office: _Office, seat: Seat) -> str:
        keys, number = office.keys, now_round.number
        reason = node_fault(FaultKind.NODE_LOST, seat.host, "its lease ended")
        key = keys.interrupt(number)
        interrupt = Interrupt(self._me.node_id, FaultKind.NODE_LOST, seat.node_id, reason, now.utc)
        when = (CreatedAt(key, 0), self._at(keys.node(seat.node_id)))
        self._commit("interrupt", self._txn(office, Put(key, encode(interrupt)), when=when))
        return reason

    def _succeed(self, now: Now, now_round: Round, office: _Office) -> str:
        keys, number = office.keys, now_round.number
        reason = "all ranks finished"
        outcome = Outcome(
            success=True,
            exit_code=0,
            reason=reason,
            round=number,
            decided_utc=now.utc,
            launch_id=self._me.launch_id,
        )
        self._commit(
            "outcome",
            self._txn(
                office,
                Put(keys.outcome, encode(outcome)),
                Put(keys.round, encode(_ended(now_round))),
                when=(CreatedAt(keys.interrupt(number), 0),),
            ),
        )
        return reason

    def _close(self, now: Now, now_round: Round, office: _Office, judge: Judge, interrupt: Interrupt) -> str:
        """Judge an interrupted round once every member has reported or is lost."""
        keys, number = office.keys, now_round.number
        nodes, world = self._nodes(keys), self._world(keys)
        reports = self._reports(keys, number)
        reported = {seat.node_id for seat in world.seats if _is_of(reports.get(seat.node_id), seat)}
        silent = [
            seat.node_id for seat in world.seats if seat.node_id not in reported and is_present(seat, nodes)
        ]
        if silent:
            return f"round {number} is over; {', '.join(silent[:8])} still to report"
        records = self._done(keys, number)
        done = {seat.node_id for seat in world.seats if _is_of(records.get(seat.node_id), seat)}
        unseen = [seat.node_id for seat in world.seats if seat.node_id not in reported | done]
        missing = dict.fromkeys(unseen, "its lease ended")
        faults = {node_id: reports[node_id] for node_id in reported}
        addresses = {node_id: node.address for node_id, node in nodes.items()}
        root = find_root(faults, missing, interrupt, world.seats, done=done, addresses=addresses)
        nothing_ready = not any(end.ready for fault in faults.values() for end in fault.ends)
        verdict = next_level(now_round.ledger, root, self._spec, nothing_ready=nothing_ready)
        if verdict.level is Level.STOP or verdict.level is Level.REQUEUE:
            return self._stop(now, now_round, office, judge, root, verdict)
        return self._restart(now, now_round, office, root, verdict)

    def _restart(self, now: Now, now_round: Round, office: _Office, root: Root, verdict: Verdict) -> str:
        keys, number = office.keys, now_round.number
        end = End(number, root, verdict.level, verdict.reason, now.utc)
        following = Round(
            number=number + 1,
            phase=Phase.FORMING,
            opened_utc=now.utc,
            previous_token=now_round.token,
            ledger=verdict.ledger,
            why=root.sentence,
        )
        old = [Delete(keys.round_scope(number - ROUNDS_KEPT))] if number >= ROUNDS_KEPT else []
        self._commit(
            "end",
            self._txn(office, Put(keys.end(number), encode(end)), Put(keys.round, encode(following)), *old),
        )
        return f"ending round {number}: {root.sentence}; {verdict.reason}"

    def _stop(
        self, now: Now, now_round: Round, office: _Office, judge: Judge, root: Root, verdict: Verdict
    ) -> str:
        end = End(now_round.number, root, verdict.level, verdict.reason, now.utc)
        return self._end_attempt(
            now,
            now_round,
            office,
            exit_code=verdict.exit_code or FAILED,
            reason=verdict.reason,
            end=end,
            judge=judge,
        )

    def _end_attempt(
        self,
        now: Now,
        now_round: Round,
        office: _Office,
        *,
        exit_code: int,
        reason: str,
        end: End | None = None,
        judge: Judge | None = None,
    ) -> str:
        """Write an outcome other than success; like a seal it waits until nothing of the last world can live."""
        keys, number = office.keys, now_round.number
        if judge is not None:
            forming = self._forming(number + 1, now.s, keys)
            wait = unclear(now.s, forming.previous, forming, judge, self._spec)
            if wait is not None:
                self._wait(wait, f"round {number} is over; {wait.reason}")
                return wait.reason
        outcome = Outcome(
            success=False,
            exit_code=exit_code,
            reason=reason,
            round=number,
            decided_utc=now.utc,
            launch_id=self._me.launch_id,
            root=end.root if end else None,
        )
        judged = [Put(keys.end(number), encode(end))] if end else []
        self._commit(
            "outcome",
            self._txn(
                office,
                Put(keys.outcome, encode(outcome)),
                Put(keys.round, encode(_ended(now_round))),
                *judged,
            ),
        )
        return reason

    # Reading the mirror -------------------------------------------------------------------------------

    def _nodes(self, keys: AttemptKeys) -> dict[str, Node]:
        return self._mirror.records(Node, keys.nodes)

    def _reports(self, keys: AttemptKeys, number: int) -> dict[str, Fault]:
        return self._mirror.records(Fault, Scope(keys.fault(number, ""), prefix=True))

    def _done(self, keys: AttemptKeys, number: int) -> dict[str, Done]:
        return self._mirror.records(Done, Scope(keys.done(number, ""), prefix=True))

    def _world(self, keys: AttemptKeys) -> _World:
        """The last sealed world: of the running round, or of the one before the forming round."""
        now_round = self._mirror.record(Round, keys.round)
        if now_round is None:
            return _World()
        running = now_round.phase is Phase.RUNNING
        token = now_round.token if running else now_round.previous_token
        if token is None:
            return _World()
        scope = keys.worlds(now_round.number if running else now_round.number - 1, token)
        shards = sorted(self._mirror.records(WorldShard, scope).values(), key=lambda shard: shard.shard)
        return _World(
            seats=tuple(seat for shard in shards for seat in shard.seats),
            spares=tuple(spare for shard in shards for spare in shard.spares),
            sealed_at=min((held.create_revision for held in self._mirror.under(scope)), default=0),
        )

    # Small steps --------------------------------------------------------------------------------------

    def _txn(self, office: _Office, *then: Operation, when: tuple[Compare, ...] = ()) -> Txn:
        """A write by the coordinator: refused if it was deposed, or if attempt or round have moved on."""
        keys = office.keys
        guard = (
            CreatedAt(office.key, office.create_revision),
            self._at(current(keys.run_id)),
            self._at(keys.round),
        )
        return Txn(when=(*guard, *when), then=then)

    def _at(self, key: str) -> ModifiedAt:
        return ModifiedAt(key, self._mirror.revision(key))

    def _commit(self, tag: str, *txns: Txn) -> None:
        self._in_flight = tag
        self._effects.append(Commit(tag, txns))

    def _wait(self, wait: Wait, sentence: str | None) -> None:
        self._wake(wait.until_s)
        if sentence is not None and sentence != self._told:
            self._told = sentence
            self._effects.append(Notify(Waiting(sentence, wait.until_s)))

    def _wake(self, at_s: float | None) -> None:
        if at_s is not None:
            self._wake_at_s = at_s if self._wake_at_s is None else min(self._wake_at_s, at_s)


def _is_of(record: Fault | Done | None, seat: Seat) -> bool:
    return record is not None and record.incarnation == seat.incarnation


def _world_size(seats: tuple[Seat, ...]) -> int:
    return seats[-1].first_rank + seats[-1].slots


def _assignment(number: int, seat: Seat, sealed: Sealed) -> Assignment:
    return Assignment(
        round=number,
        seat=seat,
        world_size=_world_size(sealed.seats),
        group_world_size=len(sealed.seats),
        master_address=sealed.master.address,
        master_port=sealed.master.master_port,
    )


def _shards(sealed: Sealed) -> list[WorldShard]:
    """The world in pieces below 1 MiB; spares stand in the first."""
    count = -(-len(sealed.seats) // SEATS_PER_SHARD)
    return [
        WorldShard(
            shard=i,
            shards=count,
            seats=sealed.seats[i * SEATS_PER_SHARD : (i + 1) * SEATS_PER_SHARD],
            spares=sealed.spares if i == 0 else (),
        )
        for i in range(count)
    ]


def _ended(now_round: Round) -> Round:
    return Round(
        number=now_round.number,
        phase=Phase.ENDED,
        opened_utc=now_round.opened_utc,
        running_utc=now_round.running_utc,
        token=now_round.token,
        previous_token=now_round.previous_token,
        world_size=now_round.world_size,
        nodes=now_round.nodes,
        ledger=now_round.ledger,
        why=now_round.why,
    )
