"""Three members, and the one in use, or the leader, goes."""

from __future__ import annotations

import asyncio

import pytest
from support.etcd_server import etcd_cluster, leader_of
from support.recorder import Recorder

from nvrx_async.etcd import EtcdClient, EtcdConfig, Feed, OutcomeUnknownError, Session, UnavailableError
from nvrx_async.etcd.types import CreatedAt, Put, Scope, Txn


@pytest.fixture
def members():
    with etcd_cluster(3) as members:
        yield members


async def write(client, key):
    """As the job does it: an unknown outcome is read again."""
    async with asyncio.timeout(30):
        while True:
            try:
                result = await client.commit(Txn((CreatedAt(key, 0),), (Put(key, b""),)))
            except (OutcomeUnknownError, UnavailableError):
                continue
            if result.succeeded:
                return result.revision
            return (await client.get(key)).mod_revision


async def test_the_leader_dies_and_everything_goes_on(members, prefix):
    """First the leader's endpoint: calls, watch and lease all move. Every write is seen once, in order."""
    leader = await asyncio.to_thread(leader_of, members)
    ordered = [leader, *(member for member in members if member is not leader)]
    config = EtcdConfig(tuple(member.endpoint for member in ordered))
    renewed = Recorder()
    async with EtcdClient(config) as client, EtcdClient(config) as writer:
        await client.first_contact(10)
        async with Session(client, ttl_s=6, on_renewed=renewed) as session, Feed(client) as feed:
            feed.set_scopes(frozenset({Scope(prefix, prefix=True)}))
            await anext(feed)
            written = [await write(writer, f"{prefix}{n:02}") for n in range(5)]
            leader.kill()
            before = len(renewed.values)
            session.renew_now()
            written += [await write(writer, f"{prefix}{n:02}") for n in range(5, 15)]
            seen = []
            async with asyncio.timeout(20):
                while len(seen) < 15:
                    seen.append((await anext(feed)).mod_revision)
                await renewed.reached(before + 1)
            assert seen == written
            assert not session.lost.is_set()
            assert await client.lease_remaining(session.lease_id) is not None


async def test_a_member_that_freezes_is_left_for_another(members, prefix):
    leader = await asyncio.to_thread(leader_of, members)
    follower, *others = [member for member in members if member is not leader]
    config = EtcdConfig(tuple(m.endpoint for m in (follower, leader, *others)), call_timeout_s=0.5)
    async with EtcdClient(config) as client:
        await client.get(prefix)
        assert client.caller.pool.current.endpoint.address == follower.endpoint
        follower.freeze()
        assert await client.get(prefix) is None
        assert (await client.commit(Txn((), (Put(prefix, b""),)))).succeeded
        follower.thaw()


async def test_a_minority_serves_nobody(members, prefix):
    survivor, *others = members
    async with EtcdClient(EtcdConfig((survivor.endpoint,), call_timeout_s=0.5)) as client:
        await client.get(prefix)
        for member in others:
            member.kill()
        with pytest.raises((UnavailableError, OutcomeUnknownError)):
            await client.commit(Txn((), (Put(prefix, b""),)))
        with pytest.raises(UnavailableError):
            await client.get(prefix)
        with pytest.raises(UnavailableError):
            await client.first_contact(0.5)
