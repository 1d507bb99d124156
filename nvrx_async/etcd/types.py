"""Values of the etcd room: keys as read, conditions and writes of a transaction, scopes to watch.

Pure data without gRPC, so that machines can speak of transactions without doing them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

MAX_TXN_OPERATIONS = 128
"""etcd's default `--max-txn-ops`: at most so many compares, and so many operations, in one transaction."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as etcd holds it. `lease` is 0 for a key that no lease removes."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Deleted:
    """A key that is gone since `mod_revision`: deleted, or its lease ended."""

    key: str
    mod_revision: int


class Scope(NamedTuple):
    """What is read or watched: one key, or with `prefix` every key that begins with it.

    With `first` too, a listing holds only the first of them, and no changes follow: for who asks whether there is
    any. Closed and opened again it is read again.
    A tuple, since machines look scopes up at every decision.
    """

    key: str
    prefix: bool = False
    first: bool = False

    def covers(self, key: str) -> bool:
        """Whether `key` lies in this scope."""
        return key.startswith(self.key) if self.prefix else key == self.key


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys of a scope as they stood together at `revision` (the store's revision, not the keys')."""

    scope: Scope
    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class ModifiedAt:
    """Holds when the key was last written at `revision`; 0 means that it does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """Holds when the key was created at `revision` and not deleted since; 0: it does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Exists:
    """Holds when the key exists, whatever its value."""

    key: str


@dataclass(frozen=True, slots=True)
class Put:
    """Writes the key. `lease` attaches it (0: permanent); a put without it detaches the key."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes the scope's keys; deleting what is not there is no error."""

    scope: Scope


@dataclass(frozen=True, slots=True)
class Empty:
    """Holds when no key of the scope exists."""

    scope: Scope

    @property
    def key(self) -> str:
        """Where the scope begins."""
        return self.scope.key


Compare: TypeAlias = ModifiedAt | CreatedAt | Exists | Empty
Operation: TypeAlias = Put | Delete


@dataclass(frozen=True, slots=True)
class Txn:
    """All of `then` in one step if all of `when` hold, else nothing. Limits: MAX_TXN_OPERATIONS each."""

    when: tuple[Compare, ...]
    then: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`revision` is the store's revision after the transaction: the mod revision of all it wrote."""

    succeeded: bool
    revision: int
