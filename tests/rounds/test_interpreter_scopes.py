"""The interpreter lists a scope for each machine that opens it, also one that another machine follows already."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from nvrx_async.etcd.types import Listing, Scope
from nvrx_async.rounds.effects import Decision, Finish
from nvrx_async.rounds.events import Event, LeaveRequested, Listed, Now
from nvrx_async.rounds.interpreter import Interpreter

SHARED = Scope("/shared")


class Feed:
    """Lists a scope when it is new in the union, as the etcd room's feed does."""

    def __init__(self) -> None:
        self._followed: frozenset[Scope] = frozenset()
        self._send, self._receive = anyio.create_memory_object_stream[Listing](100)

    def follow(self, scopes: frozenset[Scope]) -> None:
        for scope in scopes - self._followed:
            self._send.send_nowait(Listing(scope, (), 1))
        self._followed = scopes

    async def changes(self) -> AsyncIterator[Listing]:
        async for listing in self._receive:
            yield listing

    def close(self) -> None:
        self._send.close()
        self._receive.close()

    async def relist(self) -> tuple[Listing, ...]:
        return tuple(Listing(scope, (), 2) for scope in self._followed)


class First:
    """Follows the scope from the beginning."""

    def scopes(self) -> frozenset[Scope]:
        return frozenset({SHARED})

    def observe(self, event: Event, now: Now) -> None:
        pass

    def decide(self, now: Now) -> Decision:
        return Decision((), None, "")


class Second:
    """Opens it later, and ends the life when it knows the scope."""

    def __init__(self) -> None:
        self._open = False
        self._known = False

    def scopes(self) -> frozenset[Scope]:
        return frozenset({SHARED}) if self._open else frozenset()

    def observe(self, event: Event, now: Now) -> None:
        if isinstance(event, LeaveRequested):
            self._open = True
        elif isinstance(event, Listed) and self._open:
            self._known = True

    def decide(self, now: Now) -> Decision:
        return Decision((Finish(0, "known"),) if self._known else (), None, "")


async def test_a_machine_is_told_of_a_scope_that_another_follows_already() -> None:
    feed = Feed()
    interpreter = Interpreter(
        machines=(First(), Second()),
        store=feed,  # type: ignore[arg-type]  # the part that listing needs
        ranks=None,  # type: ignore[arg-type]  # no ranks here
        clock=lambda: Now(anyio.current_time(), ""),
        notify=lambda notice: None,
    )

    async def later() -> None:
        await anyio.wait_all_tasks_blocked()
        interpreter.tell(LeaveRequested(15))

    try:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(later)
                finish = await interpreter.run()
    finally:
        feed.close()
    assert finish.reason == "known"
