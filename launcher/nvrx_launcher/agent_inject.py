"""Faults of the agent on order, for tests: it dies or stands still between two effects of its machines.

    NVRX_FAULTS="agent:kill@effect=Commit:seal:1"
    NVRX_FAULTS="agent:freeze@effect=StopRanks:0#2"
    NVRX_FAULTS="agent:tell@effect=*"

A point is the name of an effect, for a commit its tag too, and a number: 0 is the moment before anything of it is done,
n the moment after its n-th part (a commit's n-th transaction) has been done and before anybody was told. `#n`: the n-th
time that the point is passed, 1 if it is not given. `kill` is SIGKILL, `freeze` SIGSTOP, of the agent alone; `tell`
writes every point that is passed to the agent's log. Several orders are separated by `;`; what does not begin
with `agent:` is the ranks' (`nvrx_async.ranklink.rank_inject`).

The drivers and machines of a life are wrapped on their way into the interpreter, which knows nothing of this.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nvrx_async.etcd.types import Scope, Txn, TxnResult
from nvrx_async.job.records import Assignment, Node
from nvrx_async.ranklink.messages import FAULTS_VARIABLE
from nvrx_async.rounds.drivers import Peers, Ranks, Store
from nvrx_async.rounds.effects import (
    AskPeers,
    Commit,
    Decision,
    Effect,
    Extend,
    Finish,
    Machine,
    Notify,
    Rely,
)
from nvrx_async.rounds.events import Answered, Event, Now, PortReserved, Proven, RanksHeld
from nvrx_launcher.errors import UsageError
from nvrx_launcher.wrapped_store import WrappedStore

_ORDER = re.compile(
    r"agent:(?P<act>kill|freeze|tell)@effect=(?P<point>\w+(:[\w-]+)?:\d+|\*)(#(?P<time>\d+))?"
)


@dataclass(frozen=True, slots=True)
class Order:
    """What is done at which point, and the how manieth time that it is passed."""

    act: str
    point: str
    time: int


def orders(environment: Mapping[str, str]) -> tuple[Order, ...]:
    """Those of `NVRX_FAULTS` that are the agent's.

    Raises:
        UsageError: one cannot be read.
    """
    found = []
    for text in environment.get(FAULTS_VARIABLE, "").split(";"):
        if not text.strip().startswith("agent:"):
            continue
        read = _ORDER.fullmatch(text.strip())
        if read is None:
            raise UsageError(
                f"{FAULTS_VARIABLE}: {text.strip()}: no such fault of an agent",
                "write agent:kill@effect=Commit:seal:1, or freeze for kill; tell@effect=* names the points",
            )
        found.append(Order(read["act"], read["point"], int(read["time"] or 1)))
    return tuple(found)


class FailPoints:
    """Wraps what an interpreter is given; without orders everything passes as it is."""

    def __init__(self, ordered: tuple[Order, ...], explain: Callable[[str], None]) -> None:
        self._orders = ordered
        self._explain = explain
        self._passed: Counter[str] = Counter()
        self._parts: dict[int, tuple[Txn, str, int]] = {}

    def machines(self, *machines: Machine) -> tuple[Machine, ...]:
        """The machines as the interpreter is to use them."""
        return tuple(_FailingMachine(one, self) for one in machines) if self._orders else machines

    def store(self, store: Store) -> Store:
        """The store as the interpreter is to use it."""
        return _FailingStore(store, self) if self._orders else store

    def ranks(self, ranks: Ranks) -> Ranks:
        """The ranks as the interpreter is to use them."""
        return _FailingRanks(ranks, self) if self._orders else ranks

    def peers(self, peers: Peers) -> Peers:
        """The way to other agents as the interpreter is to use it."""
        return _FailingPeers(peers, self) if self._orders else peers

    def passes(self, point: str) -> None:
        """The moment named so is now."""
        self._passed[point] += 1
        for order in self._orders:
            if order.act == "tell":
                self._explain(f"fail point: {point}")
            elif (order.point, order.time) == (point, self._passed[point]):
                os.kill(os.getpid(), signal.SIGKILL if order.act == "kill" else signal.SIGSTOP)

    def asked(self, effect: Effect) -> None:
        """Note what belongs to a commit, so that its transactions are known when they come to the store."""
        match effect:
            case Commit(tag=tag, txns=txns):
                for number, txn in enumerate(txns, start=1):
                    self._parts[id(txn)] = (txn, tag, number)
            case Finish():
                self.passes("Finish:0")
            case _:
                pass

    def begins(self, txn: Txn) -> None:
        """It is about to be sent."""
        _, tag, number = self._parts.get(id(txn), (txn, "", 0))
        if number == 1:
            self.passes(f"Commit:{tag}:0")

    def committed(self, txn: Txn) -> None:
        """It took effect."""
        _, tag, number = self._parts.pop(id(txn), (txn, "", 0))
        if number:
            self.passes(f"Commit:{tag}:{number}")


class _FailingMachine:
    """A machine whose effects are seen."""

    def __init__(self, machine: Machine, points: FailPoints) -> None:
        self._machine = machine
        self._points = points

    def scopes(self) -> frozenset[Scope]:
        return self._machine.scopes()

    def observe(self, event: Event, now: Now) -> None:
        self._machine.observe(event, now)

    def decide(self, now: Now) -> Decision:
        decision = self._machine.decide(now)
        for effect in decision.effects:
            if not isinstance(effect, Notify):
                self._points.asked(effect)
        return decision


class _FailingStore(WrappedStore):
    """A store between whose calls the agent may fail."""

    def __init__(self, store: Store, points: FailPoints) -> None:
        super().__init__(store)
        self._points = points

    async def commit(self, txn: Txn) -> TxnResult:
        self._points.begins(txn)
        result = await self.inner.commit(txn)
        if result.succeeded:
            self._points.committed(txn)
        return result

    async def revoke(self, lease: int) -> None:
        self._points.passes("Revoke:0")
        await self.inner.revoke(lease)
        self._points.passes("Revoke:1")

    async def lead(self, elections: Scope, key: str, create_revision: int) -> bool:
        self._points.passes("Campaign:0")
        leads = await self.inner.lead(elections, key, create_revision)
        self._points.passes("Campaign:1")
        return leads


class _FailingPeers:
    """Implements `nvrx_async.rounds.drivers.Peers`."""

    def __init__(self, peers: Peers, points: FailPoints) -> None:
        self._peers = peers
        self._points = points

    def move_t(self, by: Rely | Extend) -> None:
        name = type(by).__name__
        self._points.passes(f"{name}:0")
        self._peers.move_t(by)
        self._points.passes(f"{name}:1")

    async def ask(self, asking: AskPeers) -> Answered:
        self._points.passes("AskPeers:0")
        answered = await self._peers.ask(asking)
        self._points.passes("AskPeers:1")
        return answered


class _FailingRanks:
    """Implements `nvrx_async.rounds.drivers.Ranks`."""

    def __init__(self, ranks: Ranks, points: FailPoints) -> None:
        self._ranks = ranks
        self._points = points

    async def start(self, assignment: Assignment, generation: int) -> None:
        self._points.passes("StartRanks:0")
        await self._ranks.start(assignment, generation)
        self._points.passes("StartRanks:1")

    def stop(self, number: int, *, grace: bool) -> None:
        self._points.passes("StopRanks:0")
        self._ranks.stop(number, grace=grace)
        self._points.passes("StopRanks:1")

    def kill_hung(self, number: int) -> None:
        self._points.passes("KillHung:0")
        self._ranks.kill_hung(number)
        self._points.passes("KillHung:1")

    async def hold(self, number: int) -> RanksHeld:
        self._points.passes("HoldRanks:0")
        held = await self._ranks.hold(number)
        self._points.passes("HoldRanks:1")
        return held

    def stop_at(self, number: int, step: int | None) -> None:
        self._points.passes("StopAtStep:0")
        self._ranks.stop_at(number, step)
        self._points.passes("StopAtStep:1")

    async def reserve_port(self, number: int) -> PortReserved:
        self._points.passes("ReservePort:0")
        reserved = await self._ranks.reserve_port(number)
        self._points.passes("ReservePort:1")
        return reserved

    async def prove(self, node: Node) -> Proven:
        self._points.passes("ProveDead:0")
        proven = await self._ranks.prove(node)
        self._points.passes("ProveDead:1")
        return proven
