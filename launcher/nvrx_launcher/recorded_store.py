"""The agent's store, which also passes on what it sees of rounds: for the history that outlives etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from nvrx_async.etcd.types import Deleted, KeyValue, Listing, Put, Txn, TxnResult
from nvrx_async.job.keys import Told, told_by
from nvrx_async.rounds.drivers import Store
from nvrx_launcher.wrapped_store import WrappedStore

MOST_REPORTS = 64
"""So many reports of other nodes on a round are passed on; what a large job says of itself is in etcd."""
_MOST_KNOWN = 4096
_OF_A_NODE = frozenset({Told.REPORT, Told.DONE})


@dataclass(frozen=True, slots=True)
class ToldRecord:
    """A record as it stands in etcd, as JSON. `own`: this agent wrote it. `round` is None for the round itself."""

    kind: Told
    attempt: int
    round: int | None
    value: bytes
    own: bool


class RecordedStore(WrappedStore):
    """Passes on what is written and seen to `keep`, which must not block."""

    def __init__(self, store: Store, run_id: str, keep: Callable[[ToldRecord], None]) -> None:
        super().__init__(store)
        self._run_id = run_id
        self._keep = keep
        self._said: set[str] = set()
        self._known: dict[str, int] = {}
        self._others: dict[tuple[int, int | None], int] = {}

    async def changes(self) -> AsyncIterator[Listing | KeyValue | Deleted]:
        """See `Store`."""
        async for change in self.inner.changes():
            for held in change.items if isinstance(change, Listing) else (change,):
                if isinstance(held, KeyValue):
                    self._see(held.key, held.value, held.mod_revision, own=False)
            yield change

    async def commit(self, txn: Txn) -> TxnResult:
        """See `Store`."""
        puts = [one for one in txn.then if isinstance(one, Put)]
        for put in puts:
            self._say(put)
        result = await self.inner.commit(txn)
        if result.succeeded:
            for put in puts:
                self._see(put.key, put.value, result.revision, own=True)
        return result

    def _say(self, put: Put) -> None:
        """What this node says of its own moments holds whatever becomes of it.

        The answer may never be heard: where this was the last word that others waited for, the job ends with it.
        """
        found = told_by(self._run_id, put.key)
        if found is not None and found[1] in _OF_A_NODE:
            self._said.add(put.key)
            attempt, kind, number = found
            self._keep(ToldRecord(kind, attempt, number, put.value, own=True))

    def _see(self, key: str, value: bytes, revision: int, *, own: bool) -> None:
        """Pass on what is new; own writes come back by the watch."""
        found = told_by(self._run_id, key)
        if found is None or key in self._said or self._known.get(key) == revision:
            return
        attempt, kind, number = found
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
            self._others.clear()
        self._known[key] = revision
        if kind is Told.REPORT:
            count = self._others[attempt, number] = self._others.get((attempt, number), 0) + 1
            if count > MOST_REPORTS:
                return
        self._keep(ToldRecord(kind, attempt, number, value, own))
