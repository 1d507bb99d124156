"""Commits of the machines: in order, and with a fresh look at everything when one did not take effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from nvrx_async.etcd.errors import EtcdError, LeaseNotFoundError, OutcomeUnknownError
from nvrx_async.etcd.types import Listing, Txn
from nvrx_async.rounds.drivers import Store

FIRST_BACKOFF_S = 0.02
LAST_BACKOFF_S = 1.0


class Committer:
    """Commits for one life. A tag that is refused again and again waits longer and longer.

    `tell` is given a sentence when etcd takes no writes for a reason that a person may have to remove.
    """

    def __init__(self, store: Store, tell: Callable[[str], None]) -> None:
        self._store = store
        self._tell = tell
        self._refusals: dict[str, int] = {}

    async def commit(
        self, tag: str, txns: Sequence[Txn]
    ) -> tuple[tuple[tuple[Txn, int], ...], tuple[Listing, ...]]:
        """What took effect, each with its revision; if that is not all, also everything followed as it is now.

        A transaction whose outcome nobody knows counts as not taken: what etcd holds decides, and the machine
        sees that before it decides again.
        """
        taken: list[tuple[Txn, int]] = []
        try:
            for txn in txns:
                result = await self._store.commit(txn)
                if not result.succeeded:
                    break
                taken.append((txn, result.revision))
        except (OutcomeUnknownError, LeaseNotFoundError):
            pass  # etcd, which is read below, or the session knows what became of it
        except EtcdError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self._tell(f"{error.cause}{hint}; {tag!r} is tried again")
        if len(taken) == len(txns):
            self._refusals.pop(tag, None)
            return tuple(taken), ()
        count = self._refusals.get(tag, 0)
        self._refusals[tag] = count + 1
        await anyio.sleep(_pause_s(count))
        return tuple(taken), await self._relist()

    async def _relist(self) -> tuple[Listing, ...]:
        """Read all keys anew. While etcd is out of reach, the lease's end bounds this life, not a count."""
        failures = 0
        while True:
            try:
                return await self._store.relist()
            except EtcdError:
                failures += 1
                await anyio.sleep(_pause_s(failures))


def _pause_s(failures: int) -> float:
    return 0.0 if failures == 0 else min(FIRST_BACKOFF_S * 2 ** min(failures - 1, 10), LAST_BACKOFF_S)
