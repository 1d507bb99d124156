"""The way between a process and the store: requests and answers get lost or late, watches lag and are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rounds.sim.host import Process
from rounds.sim.store import Change, Store
from rounds.sim.timeline import Timeline

from nvrx_async.etcd.types import Listing, Scope, Txn, TxnResult

R = TypeVar("R")

REQUEST_TIMEOUT_S = 2.0
RETRY_S = 0.4
FLAKY = 0.4
"""Share of requests, and of answers, that a flaky network holds back or loses."""
LATE_S = 3.0
"""A request that was given up may still take effect so much later."""


class Link:
    """One life's connection to the store; `lag_s` delays its watches.

    After `close` no answer comes; requests on their way still take effect.
    """

    def __init__(self, store: Store, process: Process) -> None:
        self._store = store
        self._process = process
        self._timeline: Timeline = process.host.timeline
        self.watches: dict[Watch, None] = {}  # in order of age: the model is deterministic
        self.closed = False
        self.lag_s = 0.0
        store.listeners.append(self._changed)

    @property
    def reachable(self) -> bool:
        return self._store.up and not self._process.host.cut and not self._process.host.frozen

    def close(self) -> None:
        self.closed = True
        self.watches.clear()
        self._store.listeners.remove(self._changed)

    def request(
        self,
        serve: Callable[[], R],
        answer: Callable[[R | None], None],
        timeout_s: float = REQUEST_TIMEOUT_S,
        late: Callable[[R], None] = lambda _: None,
    ) -> None:
        """Have the store do something; `answer` gets its result, or None when the outcome is unknown.

        `late` gets a result that comes after that.
        """
        answered = False

        def once(result: R | None) -> None:
            nonlocal answered
            if answered and result is not None:
                late(result)
            if not answered and not self.closed:
                answered = True
                answer(result)

        def arrive() -> None:
            if not self.reachable or self._process.host.requests_lost:
                if self._timeline.random.random() < 0.15:
                    self._timeline.after(self._timeline.random.uniform(0.1, LATE_S), arrive_late)
                return
            back(serve())

        def arrive_late() -> None:
            if self.reachable:
                serve()

        def back(result: R) -> None:
            lost = self._process.host.flaky and self._timeline.random.random() < FLAKY
            if not self._process.host.answers_lost and not lost:
                delay_s = self._timeline.latency_s() + self._process.host.answer_delay_s
                self._timeline.after(delay_s, lambda: returned(result))

        def returned(result: R) -> None:
            if self.reachable:
                self._process.run(lambda: once(result))

        held_s = 0.0
        if self._process.host.flaky and self._timeline.random.random() < FLAKY:
            held_s = self._timeline.random.uniform(0.1, LATE_S)
        self._timeline.after(self._timeline.latency_s() + held_s, arrive)
        self._process.after(timeout_s, lambda: once(None))

    def commit(self, txn: Txn, answer: Callable[[TxnResult | None], None]) -> None:
        self.request(lambda: self._store.commit(txn), answer)

    def read(self, scope: Scope, answer: Callable[[Listing], None]) -> None:
        """Read until it works: repeating a read is safe."""

        def got(listing: Listing | None) -> None:
            if listing is not None:
                answer(listing)
            else:
                self._process.after(RETRY_S, lambda: None if self.closed else self.read(scope, answer))

        self.request(lambda: self._store.read(scope), got)

    def watch(self, scope: Scope, listing: Listing, deliver: Callable[[Change], None]) -> Watch:
        """Deliver every change of the scope after the listing, in order."""
        position = len(self._store.log)
        while position and self._store.log[position - 1].mod_revision > listing.revision:
            position -= 1
        watch = Watch(scope, position, deliver)
        self.watches[watch] = None
        self._schedule(watch)
        return watch

    def catch_up(self) -> None:
        """The way is open again: watches resume where they stopped."""
        for watch in list(self.watches):
            self._schedule(watch)

    def _changed(self, changes: tuple[Change, ...]) -> None:
        for watch in list(self.watches):
            if any(watch.scope.covers(change.key) for change in changes):
                self._schedule(watch)

    def _schedule(self, watch: Watch) -> None:
        target = len(self._store.log)
        self._timeline.after(self._timeline.latency_s() + self.lag_s, lambda: self._pump(watch, target))

    def _pump(self, watch: Watch, target: int) -> None:
        if watch not in self.watches or not self.reachable or self._process.host.answers_lost:
            return
        new = self._store.log[watch.position : target]
        watch.position = max(watch.position, target)
        for change in new:
            if watch.scope.covers(change.key):
                self._process.run(lambda change=change: watch.deliver(change))  # type: ignore[misc]


class Watch:
    """Changes of one scope from a place in the store's log on."""

    def __init__(self, scope: Scope, position: int, deliver: Callable[[Change], None]) -> None:
        self.scope = scope
        self.position = position
        self.deliver = deliver
