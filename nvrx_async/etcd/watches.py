"""What a feed watches, and how far each watch has come. Lives longer than the streams that serve it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from nvrx_async.etcd.types import Deleted, KeyValue, Listing, Scope
from nvrx_async.etcd.wire import change

if TYPE_CHECKING:
    from collections.abc import Callable

Item: TypeAlias = Listing | KeyValue | Deleted


class Watch:
    """One scope from its opening to its closing; opened again it is another watch.

    `resume` is the revision to watch from, 0 while a listing is due. `floor` is the first revision that the
    consumer does not yet know from a listing it asked for itself. `denied` counts refusals in a row.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.resume = 0
        self.floor = 0
        self.denied = 0
        self.is_open = True
        self._fragments: list[Any] = []

    def wants(self, item: Item) -> bool:
        """Whether the consumer should still see it."""
        revision = item.revision if isinstance(item, Listing) else item.mod_revision
        return self.is_open and revision >= self.floor

    def began(self) -> None:
        """A new stream serves the watch: what an old one left incomplete comes again."""
        self._fragments.clear()

    def take(self, message: Any) -> list[KeyValue | Deleted]:
        """The new changes of a `WatchResponse`.

        Only whole responses count: a fragment may end between two keys of one revision, and a stream that
        ends there could be resumed neither before nor behind that revision.
        """
        self._fragments.extend(message.events)
        if message.fragment:
            return []
        changes = [change(event) for event in self._fragments if event.kv.mod_revision >= self.resume]
        self._fragments.clear()
        if changes:
            self.resume = changes[-1].mod_revision + 1
        return changes


class Watches:
    """All open watches of a feed. `deliver` hands an item of a watch to the consumer."""

    def __init__(self, deliver: Callable[[Watch, Item], None]) -> None:
        self.deliver = deliver
        self.ids = itertools.count(1)
        self._open: dict[Scope, Watch] = {}
        self._changed = anyio.Event()

    def open(self) -> tuple[Watch, ...]:
        """The open watches."""
        return tuple(self._open.values())

    def set(self, scopes: frozenset[Scope]) -> None:
        """Close and open watches so that exactly these scopes are watched."""
        if scopes == self._open.keys():
            return
        for scope in self._open.keys() - scopes:
            self._open.pop(scope).is_open = False
        for scope in sorted(scopes - self._open.keys()):
            self._open[scope] = Watch(scope)
        self.notify()

    def notify(self) -> None:
        """There is something to list, to open or to close."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait for `notify`; one that came before counts."""
        await self._changed.wait()
        self._changed = anyio.Event()
