"""What tests of the machines share: records with defaults, etcd as a dictionary, a bench that feeds a machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from nvrx_async.etcd.types import (
    Compare,
    CreatedAt,
    Delete,
    Deleted,
    Empty,
    Exists,
    KeyValue,
    Listing,
    Put,
    Scope,
    Txn,
    TxnResult,
)
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    Current,
    EndedBy,
    FaultKind,
    Job,
    JobSpec,
    Join,
    Node,
    Phase,
    Process,
    RankEnd,
    Round,
    Seat,
    Spare,
    WorldShard,
)
from nvrx_async.rounds.effects import Commit, Decision, Effect, Machine
from nvrx_async.rounds.events import Committed, Event, Listed, Now, Refused
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror

E = TypeVar("E", bound=Effect)
UTC = "2026-01-01T00:00:00.000Z"
KEYS = AttemptKeys("job", 0)
SPEC = JobSpec(
    command=("train.py",),
    min_nodes=2,
    max_nodes=2,
    max_restarts=3,
    lease_ttl_s=6,
    kill_time_s=2.0,
    outage_limit_s=120.0,
    join_timeout_s=600.0,
    last_call_s=30.0,
)


def spec(**changes: Any) -> JobSpec:
    return replace(SPEC, **changes)


def process(pid: int = 7, boot: str = "boot") -> Process:
    return Process(boot, "pid:[1]", pid, 100 + pid, "tag")


def node(name: str, incarnation: str = "", slots: int = 2, **changes: Any) -> Node:
    made = Node(name, incarnation or f"{name}-1", f"host-{name}", f"10.0.0.{name}", slots, process(), UTC)
    return replace(made, **changes)


def seat(name: str, group_rank: int, slots: int = 2, incarnation: str = "", first_rank: int = -1) -> Seat:
    first = group_rank * slots if first_rank < 0 else first_rank
    return Seat(name, incarnation or f"{name}-1", f"host-{name}", group_rank, first, slots)


def join(name: str, incarnation: str = "") -> Join:
    return Join(name, incarnation or f"{name}-1", f"10.0.0.{name}", 29500)


def identity(name: str = "a", **changes: Any) -> Identity:
    made = Identity(
        run_id="job",
        node_id=name,
        fixed_id=False,
        incarnation=f"{name}-1",
        host=f"host-{name}",
        address=f"10.0.0.{name}",
        slots=2,
        process=process(),
        lease=0xA,
    )
    return replace(made, **changes)


def rank_end(rank: int = 0, kind: FaultKind | None = None, **changes: Any) -> RankEnd:
    made = RankEnd(rank, rank % 2, 1000 + rank, kind, EndedBy.ITSELF, exit_code=0 if kind is None else 1)
    return replace(made, **{"ready": True, "ran_s": 60.0, **changes})


class Keys:
    """etcd without its network: every transaction is one revision."""

    def __init__(self) -> None:
        self.revision = 1
        self.held: dict[str, KeyValue] = {}
        self.log: list[KeyValue | Deleted] = []

    def put(self, key: str, record: Any, lease: int = 0) -> KeyValue:
        self.commit(Txn((), (Put(key, encode(record), lease),)))
        return self.held[key]

    def delete(self, key: str) -> None:
        self.commit(Txn((), (Delete(Scope(key)),)))

    def listing(self, scope: Scope) -> Listing:
        items = tuple(held for key, held in sorted(self.held.items()) if scope.covers(key))
        items = items[:1] if scope.first else items
        return Listing(scope, items, self.revision)

    def commit(self, txn: Txn) -> TxnResult:
        if not all(self.holds(compare) for compare in txn.when):
            return TxnResult(succeeded=False, revision=self.revision)
        self.revision += 1
        for operation in txn.then:
            if isinstance(operation, Put):
                self._put(operation)
            else:
                for key in [key for key in self.held if operation.scope.covers(key)]:
                    del self.held[key]
                    self.log.append(Deleted(key, self.revision))
        return TxnResult(succeeded=True, revision=self.revision)

    def _put(self, put: Put) -> None:
        old = self.held.get(put.key)
        created, version = (old.create_revision, old.version + 1) if old else (self.revision, 1)
        written = KeyValue(put.key, put.value, created, self.revision, version, put.lease)
        self.held[put.key] = written
        self.log.append(written)

    def holds(self, compare: Compare) -> bool:
        held = self.held.get(compare.key)
        match compare:
            case Exists():
                return held is not None
            case Empty(scope=scope):
                return not any(scope.covers(key) for key in self.held)
            case CreatedAt(revision=revision):
                return (held.create_revision if held else 0) == revision
            case _:
                return (held.mod_revision if held else 0) == compare.revision


class Bench:
    """One machine, its mirror, and etcd; what it wants done is done only when the test says so."""

    def __init__(
        self, machine: type[Any], me: Identity, of: JobSpec = SPEC, keys: Keys | None = None
    ) -> None:
        self.etcd = keys or Keys()
        self.mirror = Mirror()
        self.machine: Machine = machine(me, of, self.mirror)
        self.now_s = 100.0
        self.last = Decision((), None, "")

    def tell(self, *events: Event, at_s: float | None = None) -> Decision:
        """Tell, look at etcd as it is now, decide."""
        self.now_s = self.now_s if at_s is None else at_s
        for event in events:
            self.mirror.observe(event)
            self.machine.observe(event, self.now)
        self.look()
        self.last = self.machine.decide(self.now)
        return self.last

    def blind(self, *events: Event) -> Decision:
        """Tell and decide without a look at etcd."""
        for event in events:
            self.mirror.observe(event)
            self.machine.observe(event, self.now)
        self.last = self.machine.decide(self.now)
        return self.last

    @property
    def now(self) -> Now:
        return Now(self.now_s, UTC)

    def look(self) -> None:
        seen: frozenset[Scope] = frozenset()
        while (scopes := self.machine.scopes()) != seen:
            seen = scopes
            self.mirror.open(scopes)
            for scope in scopes:
                self.mirror.observe(Listed(self.etcd.listing(scope)))

    def settle(self, *events: Event, at_s: float | None = None, rounds: int = 12) -> list[Effect]:
        """Tell, and let every commit take place until the machine wants none; returns all that it wanted."""
        done: list[Effect] = []
        decision = self.tell(*events, at_s=at_s)
        for _ in range(rounds):
            done.extend(decision.effects)
            commits = [effect for effect in decision.effects if isinstance(effect, Commit)]
            if not commits:
                return done
            decision = self.tell(self.outcome(commits[0]))
        raise AssertionError(f"never settles: {self.last.reason}")

    def outcome(self, commit: Commit) -> Event:
        taken = []
        for txn in commit.txns:
            result = self.etcd.commit(txn)
            if not result.succeeded:
                self.look()
                return Refused(commit.tag)
            taken.append((txn, result.revision))
        return Committed(commit.tag, tuple(taken))


def only(decision: Decision, kind: type[E]) -> E:
    found = [effect for effect in decision.effects if isinstance(effect, kind)]
    assert len(found) == 1, decision
    return found[0]


def all_of(effects: Any, kind: type[E]) -> list[E]:
    return [effect for effect in getattr(effects, "effects", effects) if isinstance(effect, kind)]


def puts(commit: Commit | Txn) -> dict[str, Put]:
    txns = commit.txns if isinstance(commit, Commit) else (commit,)
    return {put.key: put for txn in txns for put in txn.then if isinstance(put, Put)}


def opened(
    etcd: Keys, phase: Phase = Phase.FORMING, number: int = 0, of: JobSpec = SPEC, **changes: Any
) -> Round:
    """An attempt whose round is in this phase."""
    etcd.put(current("job"), Current(0, UTC))
    etcd.put(KEYS.job, Job(of, None, UTC))
    now_round = replace(Round(number, phase, UTC), **changes)
    etcd.put(KEYS.round, now_round)
    return now_round


def sealed(
    etcd: Keys, seats: tuple[Seat, ...], number: int = 0, spares: tuple[Spare, ...] = (), token: str = "t"
) -> None:
    """The world of a round, as its coordinator wrote it."""
    etcd.put(KEYS.world(number, token, 0), WorldShard(0, 1, seats, spares))


def ticks(start_s: float, step_s: float, count: int) -> Iterator[float]:
    return (start_s + step_s * i for i in range(count))
