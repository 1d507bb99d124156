"""What passes an agent's store on the rounds of its job is kept, each record once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from nvrx_async.etcd.types import Deleted, KeyValue, Listing, Put, Scope, Txn, TxnResult
from nvrx_async.job.keys import AttemptKeys, Told, told_by
from nvrx_launcher.recorded_store import MOST_REPORTS, RecordedStore, ToldRecord

KEYS = AttemptKeys("job", 3)
pytestmark = pytest.mark.anyio


class Etcd:
    """Takes what it is told to, and hands out these changes."""

    def __init__(self, *changes: Listing | KeyValue | Deleted, takes: bool = True) -> None:
        self._changes, self._takes = changes, takes
        self.calls: list[tuple[object, ...]] = []

    def follow(self, scopes: frozenset[Scope]) -> None:
        self.calls.append(("follow", scopes))

    async def changes(self) -> AsyncIterator[Listing | KeyValue | Deleted]:
        for change in self._changes:
            yield change

    async def relist(self) -> tuple[Listing, ...]:
        return (Listing(Scope("s"), (), 4),)

    async def commit(self, txn: Txn) -> TxnResult:
        return TxnResult(self._takes, 7)

    async def revoke(self, lease: int) -> None:
        self.calls.append(("revoke", lease))

    async def lead(self, elections: Scope, key: str, create_revision: int) -> bool:
        self.calls.append(("lead", elections, key, create_revision))
        return True

    async def deposed(self, key: str, create_revision: int) -> None:
        self.calls.append(("deposed", key, create_revision))


def held(key: str, revision: int = 5, value: bytes = b"{}") -> KeyValue:
    return KeyValue(key, value, revision, revision, 1, 0)


async def kept(
    *changes: Listing | KeyValue | Deleted, txn: Txn | None = None, takes: bool = True
) -> list[ToldRecord]:
    found: list[ToldRecord] = []
    etcd = Etcd(*changes, takes=takes)
    store = RecordedStore(etcd, "job", found.append)
    if txn is not None:
        assert (await store.commit(txn)).succeeded is takes
    assert [change async for change in store.changes()] == list(changes), "nothing is kept back"
    return found


async def test_moments_of_rounds_are_kept_and_nothing_else() -> None:
    keys = [KEYS.round, KEYS.interrupt(2), KEYS.fault(2, "a"), KEYS.done(2, "a")]
    others = [KEYS.node("a"), KEYS.end(2), KEYS.outcome, KEYS.join(2, "a"), KEYS.world(2, "t", 0), KEYS.job]
    others += [AttemptKeys("jobs", 3).round, "/elsewhere", KEYS.control("1"), KEYS.current]
    listing = Listing(Scope(KEYS.base, prefix=True), tuple(held(key) for key in keys[:2]), 9)
    found = await kept(listing, *map(held, [*keys[2:], *others]), Deleted(KEYS.round, 9))
    assert [(told.kind, told.round) for told in found] == [
        (Told.ROUND, None),
        (Told.INTERRUPT, 2),
        (Told.REPORT, 2),
        (Told.DONE, 2),
    ]
    assert {(told.attempt, told.own) for told in found} == {(3, False)}


async def test_what_this_agent_wrote_is_its_own_and_comes_once() -> None:
    txn = Txn((), (Put(KEYS.fault(1, "a"), b'{"x":1}'), Put(KEYS.node("a"), b"{}")))
    (told,) = await kept(held(KEYS.fault(1, "a"), 7, b'{"x":1}'), txn=txn)
    assert told == ToldRecord(Told.REPORT, 3, 1, b'{"x":1}', own=True)


async def test_what_etcd_did_not_take_never_was() -> None:
    assert await kept(txn=Txn((), (Put(KEYS.interrupt(1), b"{}"), Put(KEYS.round, b"{}"))), takes=False) == []


async def test_a_nodes_own_moments_are_kept_though_nobody_hears_the_answer() -> None:
    class Silent(Etcd):
        async def commit(self, txn: Txn) -> TxnResult:
            del txn
            await anyio.sleep_forever()
            raise AssertionError

    found: list[ToldRecord] = []
    store = RecordedStore(Silent(), "job", found.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            store.commit, Txn((), (Put(KEYS.done(1, "a"), b"{}"), Put(KEYS.interrupt(1), b"{}")))
        )
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()  # the job is over before
    assert [(told.kind, told.own) for told in found] == [(Told.DONE, True)]


async def test_each_state_of_the_round_is_kept() -> None:
    assert [told.value for told in await kept(held(KEYS.round, 5, b"1"), held(KEYS.round, 6, b"2"))] == [
        b"1",
        b"2",
    ]


async def test_of_a_large_job_a_part_is_kept_and_this_nodes_own_always() -> None:
    reports = [held(KEYS.fault(1, f"n{number}"), number + 10) for number in range(MOST_REPORTS + 40)]
    own = Txn((), (Put(KEYS.fault(1, "own"), b"{}"),))
    found = await kept(*reports, held(KEYS.fault(2, "n0"), 500), txn=own)
    assert sum(told.round == 1 for told in found) == MOST_REPORTS + 1
    assert found[0].own
    assert sum(told.round == 2 for told in found) == 1


async def test_all_else_is_passed_through() -> None:
    etcd = Etcd()
    store = RecordedStore(etcd, "job", lambda told: None)
    scopes = frozenset({Scope("x")})
    store.follow(scopes)
    await store.revoke(4)
    assert await store.lead(KEYS.elections, "k", 2)
    await store.deposed("k", 2)
    assert await store.relist() == (Listing(Scope("s"), (), 4),)
    assert etcd.calls == [
        ("follow", scopes),
        ("revoke", 4),
        ("lead", KEYS.elections, "k", 2),
        ("deposed", "k", 2),
    ]


def test_a_key_of_nobody_tells_nothing() -> None:
    assert told_by("job", KEYS.round) == (3, Told.ROUND, None)
    assert told_by("jo", KEYS.round) is None
    assert told_by("job", f"{KEYS.base}rounds/1/faults/a/b") is None
