"""Faults of the agent on order: how they are written, and that a point is passed where it says."""

from __future__ import annotations

import pytest

from nvrx_async.etcd.types import Txn, TxnResult
from nvrx_async.ranklink import rank_inject
from nvrx_async.rounds.effects import Commit, Decision, Finish
from nvrx_async.rounds.events import Now
from nvrx_launcher.agent_inject import FailPoints, Order, orders
from nvrx_launcher.errors import UsageError

TELL = "agent:tell@effect=*"
NOW = Now(0.0, "2026-01-01T00:00:00.000Z")


class Machine:
    """Wants these effects."""

    def __init__(self, *effects):
        self.effects = effects

    def scopes(self):
        return frozenset()

    def observe(self, event, now):
        pass

    def decide(self, now):
        return Decision(self.effects, None, "so")


class Store:
    """Commits what `succeeds` says."""

    def __init__(self, *, succeeds=True):
        self.succeeds = succeeds

    async def commit(self, txn):
        return TxnResult(self.succeeds, 7)


def test_orders_of_agents_and_of_ranks_stand_side_by_side():
    text = "agent:kill@effect=Commit:seal:1; hang rank=1 step=4 ;agent:freeze@effect=StopRanks:0#2"
    assert orders({"NVRX_FAULTS": text}) == (
        Order("kill", "Commit:seal:1", 1),
        Order("freeze", "StopRanks:0", 2),
    )
    assert [one.kind for one in rank_inject.orders(text, 2)] == ["hang"]
    assert orders({}) == ()


@pytest.mark.parametrize(
    "text", ["agent:kill", "agent:melt@effect=StopRanks:0", "agent:kill@effect=StopRanks"]
)
def test_what_cannot_be_read_is_named(text):
    with pytest.raises(UsageError, match="no such fault of an agent"):
        orders({"NVRX_FAULTS": text})


async def test_a_commit_has_a_point_before_it_and_one_after_each_transaction():
    told, txns = [], (Txn((), ()), Txn((), ()))
    points = FailPoints(orders({"NVRX_FAULTS": TELL}), told.append)
    (machine,) = points.machines(Machine(Commit("seal", txns), Finish(0, "done")))
    machine.decide(NOW)
    store = points.store(Store())
    for txn in txns:
        await store.commit(txn)
    spelled = [line.removeprefix("fail point: ") for line in told]
    assert spelled == ["Finish:0", "Commit:seal:0", "Commit:seal:1", "Commit:seal:2"]


async def test_a_refused_transaction_passes_no_point_after_it():
    told, txn = [], Txn((), ())
    points = FailPoints(orders({"NVRX_FAULTS": TELL}), told.append)
    (machine,) = points.machines(Machine(Commit("join", (txn,))))
    machine.decide(NOW)
    await points.store(Store(succeeds=False)).commit(txn)
    assert told == ["fail point: Commit:join:0"]


def test_without_orders_nothing_is_wrapped():
    points, machine, store = FailPoints((), print), Machine(), Store()
    assert points.machines(machine) == (machine,)
    assert points.store(store) is store
