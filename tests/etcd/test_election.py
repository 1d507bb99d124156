from __future__ import annotations

import asyncio

import pytest

from nvrx_async.etcd import DeposedError, EtcdClient, EtcdConfig, deposed, lead
from nvrx_async.etcd.types import CreatedAt, Delete, Put, Scope, Txn


async def stand(client, key):
    return (await client.commit(Txn((CreatedAt(key, 0),), (Put(key, b""),)))).revision


async def test_the_predecessor_is_the_youngest_of_the_older_ones(client, prefix):
    elections = Scope(prefix, prefix=True)
    revisions = [await stand(client, f"{prefix}{name}") for name in ("c", "a", "b")]
    assert (await client.newest_before(elections, revisions[2])).key == f"{prefix}a"
    assert (await client.newest_before(elections, revisions[1])).key == f"{prefix}c"
    assert await client.newest_before(elections, revisions[0]) is None


async def resign(client, key):
    await client.commit(Txn((), (Delete(Scope(key)),)))


async def test_five_candidates_lead_one_after_the_other_in_the_order_of_their_keys(client, prefix):
    elections = Scope(prefix, prefix=True)
    # Names in the reverse order of creation: only the revision may count.
    keys = [f"{prefix}{9 - n}" for n in range(5)]
    revisions = {key: await stand(client, key) for key in keys}
    led: list[str] = []
    leads = {key: asyncio.Event() for key in keys}

    async def campaign(key):
        await lead(client, elections, key, revisions[key])
        led.append(key)
        leads[key].set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for key in reversed(keys):
            group.create_task(campaign(key))
        for key in keys:
            await leads[key].wait()
            assert led == keys[: keys.index(key) + 1]
            await resign(client, key)


async def test_a_candidate_that_goes_from_the_middle_makes_nobody_lead(client, prefix):
    elections = Scope(prefix, prefix=True)
    first, middle, last = (f"{prefix}{name}" for name in ("first", "middle", "last"))
    revisions = {key: await stand(client, key) for key in (first, middle, last)}
    waiting = asyncio.create_task(lead(client, elections, last, revisions[last]))
    await resign(client, middle)
    assert (await asyncio.wait([waiting], timeout=0.2))[1]
    await resign(client, first)
    await asyncio.wait_for(waiting, 10)


async def test_deposed_while_waiting_and_before(client, prefix):
    elections = Scope(prefix, prefix=True)
    first, own = f"{prefix}first", f"{prefix}own"
    await stand(client, first)
    revision = await stand(client, own)
    waiting = asyncio.create_task(lead(client, elections, own, revision))
    await asyncio.sleep(0)
    await resign(client, own)
    with pytest.raises(DeposedError, match="own"):
        await asyncio.wait_for(waiting, 10)
    again = await stand(client, own)
    with pytest.raises(DeposedError):
        await lead(client, elections, own, revision)
    await resign(client, first)
    await lead(client, elections, own, again)


async def test_a_leader_hears_that_it_is_deposed_when_its_lease_ends(client, prefix):
    lease = await client.grant(60)
    revision = (await client.commit(Txn((), (Put(prefix, b"", lease=lease.id),)))).revision
    waiting = asyncio.create_task(deposed(client, prefix, revision))
    await client.commit(Txn((), (Put(prefix, b"other value", lease=lease.id),)))
    assert (await asyncio.wait([waiting], timeout=0.2))[1], "a new value is no new key"
    await client.revoke(lease.id)
    await asyncio.wait_for(waiting, 10)
    await stand(client, prefix)
    await asyncio.wait_for(deposed(client, prefix, revision), 10)


async def test_a_deposed_leader_writes_nothing(client, prefix):
    key = f"{prefix}candidate"
    revision = await stand(client, key)
    await resign(client, key)
    await stand(client, key)
    fenced = Txn((CreatedAt(key, revision),), (Put(f"{prefix}decision", b""),))
    assert not (await client.commit(fenced)).succeeded
    assert await client.get(f"{prefix}decision") is None


async def test_an_etcd_that_is_away_only_delays_the_election(etcd, prefix):
    async with EtcdClient(EtcdConfig((etcd.endpoint,), call_timeout_s=0.2)) as client:
        revision = await stand(client, f"{prefix}own")
        etcd.kill()
        waiting = asyncio.create_task(lead(client, Scope(prefix, prefix=True), f"{prefix}own", revision))
        assert (await asyncio.wait([waiting], timeout=0.5))[1]
        await asyncio.to_thread(etcd.start)
        await asyncio.wait_for(waiting, 10)
