"""A linearizable store with revisions, transactions and leases: what etcd promises and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rounds.sim.timeline import Timeline

from nvrx_async.etcd.types import (
    MAX_TXN_OPERATIONS,
    Compare,
    CreatedAt,
    Delete,
    Deleted,
    Empty,
    Exists,
    KeyValue,
    Listing,
    ModifiedAt,
    Put,
    Scope,
    Txn,
    TxnResult,
)

Change = KeyValue | Deleted

LEASE_CHECK_S = 0.5
"""etcd looks for lapsed leases twice a second, so a lease may outlive its TTL by that much."""


@dataclass(slots=True)
class Lease:
    ttl_s: float
    expires_s: float
    keys: set[str] = field(default_factory=set)


class Store:
    """Key-value state; `log` holds every change in order, for watches and checks."""

    def __init__(self, timeline: Timeline) -> None:
        self.revision = 1
        self.keys: dict[str, KeyValue] = {}
        self.log: list[Change] = []
        self.leases: dict[int, Lease] = {}
        self.up = True
        self.listeners: list[Callable[[tuple[Change, ...]], None]] = []
        self._timeline = timeline
        self._next_lease = 0x1000
        timeline.after(LEASE_CHECK_S, self._expire)

    def grant(self, ttl_s: float) -> int:
        self._next_lease += 1
        self.leases[self._next_lease] = Lease(ttl_s, self._timeline.now_s + ttl_s)
        return self._next_lease

    def renew(self, lease: int) -> bool:
        """Whether the lease still existed; if so it lasts a whole TTL from now."""
        held = self.leases.get(lease)
        if held is None:
            return False
        held.expires_s = self._timeline.now_s + held.ttl_s
        return True

    def revoke(self, lease: int) -> None:
        held = self.leases.pop(lease, None)
        if held is not None and held.keys:
            self.revision += 1
            self._publish([self._drop(key) for key in sorted(held.keys)])

    def read(self, scope: Scope) -> Listing:
        items = tuple(self.keys[key] for key in sorted(self.keys) if scope.covers(key))
        items = items[:1] if scope.first else items
        return Listing(scope, items, self.revision)

    def commit(self, txn: Txn) -> TxnResult:
        """Apply a transaction in one step, or nothing of it."""
        assert len(txn.when) <= MAX_TXN_OPERATIONS, "etcd refuses so many compares"
        assert len(txn.then) <= MAX_TXN_OPERATIONS, "etcd refuses so many operations"
        puts = [operation for operation in txn.then if isinstance(operation, Put)]
        deletes = [operation for operation in txn.then if isinstance(operation, Delete)]
        assert len({put.key for put in puts}) == len(puts), f"etcd refuses a key written twice: {puts}"
        for delete in deletes:
            assert not any(delete.scope.covers(put.key) for put in puts), (
                "etcd refuses put and delete of one key"
            )
        if not all(self._holds(compare) for compare in txn.when):
            return TxnResult(succeeded=False, revision=self.revision)
        if any(put.lease and put.lease not in self.leases for put in puts):
            return TxnResult(succeeded=False, revision=self.revision)
        gone = {key for delete in deletes for key in self.keys if delete.scope.covers(key)}
        if puts or gone:
            self.revision += 1
            self._publish([*(self._drop(key) for key in sorted(gone)), *(self._put(put) for put in puts)])
        return TxnResult(succeeded=True, revision=self.revision)

    def stop(self) -> None:
        self.up = False

    def restart(self) -> None:
        """Come back with all data; every lease gets a whole TTL again, as with a new etcd leader."""
        self.up = True
        for lease in self.leases.values():
            lease.expires_s = self._timeline.now_s + lease.ttl_s

    def _expire(self) -> None:
        self._timeline.after(LEASE_CHECK_S, self._expire)
        if self.up:
            for lease, held in list(self.leases.items()):
                if held.expires_s <= self._timeline.now_s:
                    self.revoke(lease)

    def _holds(self, compare: Compare) -> bool:
        held = None if isinstance(compare, Empty) else self.keys.get(compare.key)
        match compare:
            case Empty(scope=scope):
                return not any(scope.covers(key) for key in self.keys)
            case Exists():
                return held is not None
            case ModifiedAt():
                return (held.mod_revision if held else 0) == compare.revision
            case CreatedAt():
                return (held.create_revision if held else 0) == compare.revision
        raise AssertionError(compare)

    def _put(self, put: Put) -> KeyValue:
        held = self.keys.get(put.key)
        if held is not None and held.lease:
            self.leases[held.lease].keys.discard(put.key)
        if put.lease:
            self.leases[put.lease].keys.add(put.key)
        created, version = (held.create_revision, held.version + 1) if held else (self.revision, 1)
        written = KeyValue(put.key, put.value, created, self.revision, version, put.lease)
        self.keys[put.key] = written
        return written

    def _drop(self, key: str) -> Deleted:
        held = self.keys.pop(key)
        if held.lease in self.leases:
            self.leases[held.lease].keys.discard(key)
        return Deleted(key, self.revision)

    def _publish(self, changes: list[Change]) -> None:
        self.log.extend(changes)
        for listener in list(self.listeners):
            listener(tuple(changes))
