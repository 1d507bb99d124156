"""What one machine knows of etcd: the keys of its scopes, newest write of each, and its own commits at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nvrx_async.etcd.types import Delete, Deleted, KeyValue, Listing, Put, Scope, Txn
from nvrx_async.job.codec import decode
from nvrx_async.rounds.events import Changed, Committed, Event, Listed

T = TypeVar("T")


@dataclass(slots=True)
class _Index:
    """Keys of one scope; `undecoded` are those whose record is not in `records` yet, or no longer."""

    held: dict[str, KeyValue]
    undecoded: set[str]
    changed_at: int
    records: dict[str, Any] = field(default_factory=dict)


class Mirror:
    """Keys of the open scopes. Order of arrival does not matter: for each key the newest revision wins."""

    def __init__(self) -> None:
        self._open: set[Scope] = set()
        self._known: set[Scope] = set()
        self._keys: dict[str, KeyValue] = {}
        self._gone_at: dict[str, int] = {}
        self._decoded: dict[str, Any] = {}
        self._indexes: dict[Scope, _Index] = {}
        self._changes = itertools.count(1)

    def open(self, scopes: frozenset[Scope]) -> None:
        """Keep exactly these scopes; what lies in none of them is forgotten."""
        if scopes == self._open:
            return
        self._open = set(scopes)
        self._known &= scopes
        self._indexes.clear()
        for key in [key for key in self._keys if not self._covered(key)]:
            del self._keys[key]
            self._decoded.pop(key, None)
        for key in [key for key in self._gone_at if not self._covered(key)]:
            del self._gone_at[key]

    def observe(self, event: Event) -> None:
        """Note what an event says of etcd; other events are ignored."""
        if isinstance(event, Listed):
            self._list(event.listing)
        elif isinstance(event, Changed):
            self._change(event.change)
        elif isinstance(event, Committed):
            for txn, revision in event.txns:
                self._own(txn, revision)

    def knows(self, *scopes: Scope) -> bool:
        """Whether all these scopes were listed since they were opened."""
        return all(scope in self._known for scope in scopes)

    def get(self, key: str) -> KeyValue | None:
        """The key's newest known write, None if it does not exist."""
        return self._keys.get(key)

    def revision(self, key: str) -> int:
        """The key's mod revision for a compare, 0 if it does not exist."""
        held = self._keys.get(key)
        return held.mod_revision if held else 0

    def gone_at(self, key: str) -> int:
        """The revision at which the key was seen to vanish, 0 if it exists or was never seen."""
        return self._gone_at.get(key, 0)

    def record(self, cls: type[T], key: str) -> T | None:
        """The key's value as a record, None if it does not exist."""
        known = self._decoded.get(key)
        if isinstance(known, cls):
            return known
        held = self._keys.get(key)
        return self._decode(cls, held) if held else None

    def under(self, scope: Scope) -> Iterator[KeyValue]:
        """All keys of a scope."""
        return iter(self._index(scope).held.values())

    def records(self, cls: type[T], scope: Scope) -> dict[str, T]:
        """All records of a scope, by the part of the key behind the scope's prefix. To be looked at only: it lives."""
        index = self._index(scope)
        for key in sorted(index.undecoded):
            held = index.held.get(key)
            if held is None:
                index.records.pop(key[len(scope.key) :], None)
            else:
                index.records[key[len(scope.key) :]] = self._decode(cls, held)
        index.undecoded.clear()
        return index.records

    def changed_at(self, scope: Scope) -> int:
        """A number that grows whenever something in the scope changed, for what is counted from it."""
        return self._index(scope).changed_at

    def _index(self, scope: Scope) -> _Index:
        """What lies in a scope, kept while scopes stay as they are: a coordinator asks for it at every event."""
        index = self._indexes.get(scope)
        if index is None:
            held = {key: held for key, held in self._keys.items() if scope.covers(key)}
            index = self._indexes[scope] = _Index(held, set(held), next(self._changes))
        return index

    def _decode(self, cls: type[T], held: KeyValue) -> T:
        """Decode once for each write of a key: a coordinator looks at a thousand keys at every event."""
        known = self._decoded.get(held.key)
        if isinstance(known, cls):
            return known
        record = decode(cls, held.key, held.value)
        self._decoded[held.key] = record
        return record

    def _covered(self, key: str) -> bool:
        return any(scope.covers(key) for scope in self._open)

    def _list(self, listing: Listing) -> None:
        if listing.scope not in self._open:
            return
        listed = {item.key for item in listing.items}
        # Of the first key alone a listing says nothing of those behind it.
        first = min(listed) if listing.scope.first and listed else None
        for key in [held.key for held in self.under(listing.scope)]:
            if key not in listed and (first is None or key < first):
                self._change(Deleted(key, listing.revision))
        for item in listing.items:
            self._change(item)
        self._known.add(listing.scope)

    def _change(self, change: KeyValue | Deleted) -> None:
        key, revision = change.key, change.mod_revision
        held = self._keys.get(key)
        newest = max(held.mod_revision if held else 0, self._gone_at.get(key, 0))
        if not self._covered(key) or revision < newest:
            return
        if isinstance(change, Deleted):
            self._keys.pop(key, None)
            self._decoded.pop(key, None)
            self._gone_at[key] = revision
        else:
            # Equal revisions are one write: etcd's word on it replaces what `_own` assumed.
            if held is None or held.mod_revision != revision:
                self._decoded.pop(key, None)
            self._keys[key] = change
            self._gone_at.pop(key, None)
        self._enter(key)

    def _enter(self, key: str) -> None:
        held = self._keys.get(key)
        for scope, index in self._indexes.items():
            if scope.covers(key):
                index.undecoded.add(key)
                index.changed_at = next(self._changes)
                if held is None:
                    index.held.pop(key, None)
                else:
                    index.held[key] = held

    def _own(self, txn: Txn, revision: int) -> None:
        for operation in txn.then:
            if isinstance(operation, Put):
                held = self._keys.get(operation.key)
                if held is not None and held.mod_revision == revision:
                    continue  # etcd told of this write first, and knows when the key was created
                created = held.create_revision if held else revision
                version = held.version + 1 if held else 1
                self._change(
                    KeyValue(operation.key, operation.value, created, revision, version, operation.lease)
                )
            elif isinstance(operation, Delete):
                for key in [held.key for held in self.under(operation.scope)]:
                    self._change(Deleted(key, revision))
