"""The one interpreter of effects: it tells the machines what happened and does what they decide.

It knows nothing of rounds. Drivers are passed in, so that tests put a model in their place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.abc import TaskGroup

from nvrx_async.etcd.types import Listing, Scope, Txn
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.rounds.committer import Committer
from nvrx_async.rounds.drivers import Peers, Ranks, Store
from nvrx_async.rounds.effects import (
    AskPeers,
    Campaign,
    Commit,
    Effect,
    Extend,
    Finish,
    HoldRanks,
    KillHung,
    Machine,
    Notice,
    Notify,
    ProveDead,
    Rely,
    ReservePort,
    Revoke,
    StartRanks,
    StopAtStep,
    StopRanks,
    Waiting,
)
from nvrx_async.rounds.events import (
    Changed,
    Committed,
    Deposed,
    Elected,
    Event,
    Listed,
    Now,
    Refused,
    Tick,
)
from nvrx_async.rounds.inbox import Inbox
from nvrx_async.rounds.mirror import Mirror

GATHER_S = 0.001


class Interpreter:
    """Runs the machines of one life until one of them says Finish."""

    def __init__(
        self,
        machines: Sequence[Machine],
        mirror: Mirror,
        store: Store,
        ranks: Ranks,
        clock: Callable[[], Now],
        notify: Callable[[Notice], None],
        explain: Callable[[str], None],
        *,
        peers: Peers,
    ) -> None:
        self._machines = machines
        self._mirror = mirror
        self._store = store
        self._ranks = ranks
        self._peers = peers
        self._clock = clock
        self._notify = notify
        self._explain = explain
        self._reasons: dict[Machine, str] = {}
        self._wanted: tuple[frozenset[Scope], ...] = ()
        self._inbox = Inbox[tuple[Machine | None, Event]]()
        self._committer = Committer(store, lambda sentence: notify(Waiting(sentence)))
        self._finish: Finish | None = None

    def tell(self, event: Event, addressee: Machine | None = None) -> None:
        """Tell all machines, or one, of an event. Never blocks; after the end of this life nobody listens."""
        self._inbox.put((addressee, event))

    async def run(self) -> Finish:
        """Drive the machines to the end of this life. Tasks under way are cancelled then."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            self._open_scopes()
            wake_at_s = self._clock().s
            while self._finish is None:
                events = await self._next_events(wake_at_s)
                now, began_s = self._clock(), time.monotonic()
                self._observe(events, now)
                wake_at_s = self._decide(tasks, now)
                # A look at a thousand members takes a while; as long, their reports gather for the next one.
                if (took_s := time.monotonic() - began_s) > GATHER_S:
                    await anyio.sleep_until(anyio.current_time() + took_s)
            tasks.cancel_scope.cancel()
            return self._finish
        raise AssertionError("cancelled scopes re-raise")

    async def _next_events(self, wake_at_s: float) -> list[tuple[Machine | None, Event]]:
        """All events that wait, at least one; a Tick when the moment to wake comes first."""
        events = await self._inbox.take(wake_at_s - self._clock().s)
        return events or [(None, Tick())]

    def _observe(self, events: Sequence[tuple[Machine | None, Event]], now: Now) -> None:
        for addressee, event in events:
            self._mirror.observe(event)
            for machine in self._machines:
                if addressee is None or addressee is machine:
                    machine.observe(event, now)
            self._open_scopes()

    def _open_scopes(self) -> None:
        """Know what the machines need to know now, and nothing else."""
        wanted = tuple(machine.scopes() for machine in self._machines)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        scopes = frozenset[Scope]().union(*wanted)
        self._mirror.open(scopes)
        self._store.follow(scopes)

    def _decide(self, tasks: TaskGroup, now: Now) -> float:
        wake_at_s = math.inf
        for machine in self._machines:
            decision = machine.decide(now)
            if decision.effects or decision.reason != self._reasons.get(machine):
                self._reasons[machine] = decision.reason
                self._explain(f"{type(machine).__name__.lower()}: {decision}")
            for effect in decision.effects:
                self._execute(effect, machine, tasks)
            wake_at_s = min(wake_at_s, math.inf if decision.wake_at_s is None else decision.wake_at_s)
        self._open_scopes()
        return wake_at_s

    def _execute(self, effect: Effect, machine: Machine, tasks: TaskGroup) -> None:
        match effect:
            case StopRanks(round=number, grace=grace):
                self._ranks.stop(number, grace=grace)
            case KillHung(round=number):
                self._ranks.kill_hung(number)
            case HoldRanks(round=number):
                tasks.start_soon(self._report, self._ranks.hold(number))
            case StopAtStep(round=number, step=step):
                self._ranks.stop_at(number, step)
            case Rely() | Extend():
                self._peers.move_t(effect)
            case AskPeers():
                tasks.start_soon(self._report, self._peers.ask(effect))
            case StartRanks(assignment=assignment, generation=generation):
                tasks.start_soon(self._ranks.start, assignment, generation)
            case Commit(tag=tag, txns=txns):
                tasks.start_soon(self._commit, machine, tag, txns)
            case ReservePort(round=number):
                tasks.start_soon(self._report, self._ranks.reserve_port(number))
            case ProveDead(node=node):
                tasks.start_soon(self._report, self._ranks.prove(node))
            case Revoke(lease=lease):
                tasks.start_soon(self._store.revoke, lease)
            case Campaign(key=key, create_revision=create_revision):
                tasks.start_soon(self._campaign, key, create_revision)
            case Notify(notice=notice):
                self._notify(notice)
            case Finish():
                self._finish = effect

    async def _follow(self) -> None:
        async for change in self._store.changes():
            self.tell(Listed(change) if isinstance(change, Listing) else Changed(change))

    async def _report(self, happening: Awaitable[Event]) -> None:
        self.tell(await happening)

    async def _commit(self, machine: Machine, tag: str, txns: Sequence[Txn]) -> None:
        taken, listings = await self._committer.commit(tag, txns)
        for listing in listings:
            self.tell(Listed(listing))
        outcome: Event = Committed(tag, taken) if len(taken) == len(txns) else Refused(tag)
        self.tell(outcome, machine)

    async def _campaign(self, key: str, create_revision: int) -> None:
        if await self._store.lead(AttemptKeys.holding(key).elections, key, create_revision):
            self.tell(Elected(key, create_revision))
            await self._store.deposed(key, create_revision)
        self.tell(Deposed(key))
