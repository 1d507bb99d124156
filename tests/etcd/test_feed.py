from __future__ import annotations

import asyncio
import contextlib

import pytest
from aetcd.rpc import kv_pb2 as mvcc
from support.etcd_server import free_ports
from support.fake_etcd import HEADER, FakeEtcd

from nvrx_async.etcd import EtcdClient, EtcdConfig, Feed, ForeignClusterError, watch_stream
from nvrx_async.etcd.types import Delete, Deleted, KeyValue, Listing, Put, Scope, Txn
from nvrx_async.etcd.wire import messages


async def put(client, *keys, value=b""):
    return (await client.commit(Txn((), tuple(Put(key, value) for key in keys)))).revision


async def take(feed, count):
    items = []
    async with asyncio.timeout(20):
        while len(items) < count:
            items.append(await anext(feed))
    return items


async def compact(client, revision):
    request = messages.CompactionRequest(revision=revision, physical=True)
    await client.caller.repeat(lambda at: at.kv.Compact, request)


async def test_a_listing_first_then_every_change(client, prefix):
    before = await put(client, f"{prefix}a", value=b"1")
    async with Feed(client) as feed:
        feed.set_scopes(frozenset({Scope(prefix, prefix=True)}))
        [listing] = await take(feed, 1)
        assert isinstance(listing, Listing)
        assert [(item.key, item.mod_revision) for item in listing.items] == [(f"{prefix}a", before)]
        put_at = await put(client, f"{prefix}b", value=b"2")
        deleted_at = (await client.commit(Txn((), (Delete(Scope(f"{prefix}a")),)))).revision
        created, gone = await take(feed, 2)
        assert created == KeyValue(f"{prefix}b", b"2", put_at, put_at, 1)
        assert gone == Deleted(f"{prefix}a", deleted_at)


async def test_what_came_together_is_handed_over_together(client, prefix):
    """Who decides on it decides once: between two items that are there the event loop has no turn."""
    async with Feed(client) as feed:
        feed.set_scopes(frozenset({Scope(prefix, prefix=True)}))
        await take(feed, 1)
        await put(client, *(f"{prefix}{n}" for n in range(50)))
        await take(feed, 1)
        turns = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        assert len([await anext(feed) for _ in range(49)]) == 49
        assert not turns


async def test_of_the_first_key_alone_no_changes_follow(client, prefix):
    """A thousand agents that ask whether there is anyone must not each be told of all others."""
    first, other = Scope(f"{prefix}a/", prefix=True, first=True), Scope(f"{prefix}b")
    async with Feed(client) as feed:
        feed.set_scopes(frozenset({first, other}))
        await take(feed, 2)
        await put(client, f"{prefix}a/1")
        await put(client, other.key)
        assert [item.key for item in await take(feed, 1)] == [other.key]
        assert len((await feed.relist())[0].items) == 1
        feed.set_scopes(frozenset({other}))
        feed.set_scopes(frozenset({first, other}))
        assert [item.key for item in (await take(feed, 1))[0].items] == [f"{prefix}a/1"]


async def test_a_key_of_an_ended_lease_is_deleted(client, prefix):
    lease = await client.grant(60)
    await client.commit(Txn((), (Put(prefix, b"", lease=lease.id),)))
    async with Feed(client) as feed:
        feed.set_scopes(frozenset({Scope(prefix)}))
        await take(feed, 1)
        await client.revoke(lease.id)
        assert isinstance((await take(feed, 1))[0], Deleted)


async def test_scopes_open_and_close_one_by_one(client, prefix):
    a, b = Scope(f"{prefix}a"), Scope(f"{prefix}b/", prefix=True)
    async with Feed(client) as feed:
        feed.set_scopes(frozenset({a}))
        assert (await take(feed, 1))[0].scope == a
        feed.set_scopes(frozenset({a, b}))
        assert (await take(feed, 1))[0].scope == b
        await put(client, a.key, "unrelated", f"{b.key}1")
        assert {item.key for item in await take(feed, 2)} == {a.key, f"{b.key}1"}
        feed.set_scopes(frozenset({b}))
        await put(client, a.key)
        await put(client, f"{b.key}2")
        assert [item.key for item in await take(feed, 1)] == [f"{b.key}2"]
        feed.set_scopes(frozenset({a, b}))
        again = (await take(feed, 1))[0]
        assert again.scope == a
        assert again.items[0].version == 2


async def test_no_scopes_and_then_some_again(client, prefix):
    async with Feed(client) as feed:
        for _ in range(3):
            feed.set_scopes(frozenset({Scope(prefix)}))
            assert isinstance((await take(feed, 1))[0], Listing)
            feed.set_scopes(frozenset())
            await asyncio.sleep(0)


async def test_relist_reads_now_and_nothing_older_follows(client, prefix):
    scope = Scope(prefix, prefix=True)
    async with Feed(client) as feed:
        feed.set_scopes(frozenset({scope}))
        await take(feed, 1)
        await put(client, f"{prefix}a")
        [listing] = await feed.relist()
        assert [item.key for item in listing.items] == [f"{prefix}a"]
        after = await put(client, f"{prefix}b")
        assert [item.mod_revision for item in await take(feed, 1)] == [after]


async def test_ten_thousand_events_at_once_each_once(client, prefix):
    """A watch that begins behind them gets them in large batches, in fragments of 1.5 MiB."""
    scope = Scope(prefix, prefix=True)
    async with Feed(client) as feed:
        feed.set_scopes(frozenset({scope}))
        await take(feed, 1)
        revisions = [
            await put(client, *(f"{prefix}{n:03}" for n in range(125)), value=bytes(1000)) for _ in range(80)
        ]
        seen = await take(feed, 10_000)
    assert [item.mod_revision for item in seen] == [revision for revision in revisions for _ in range(125)]
    assert len({(item.key, item.mod_revision) for item in seen}) == 10_000


async def test_a_batch_behind_a_restart_arrives_once_and_whole(etcd, prefix):
    """10,000 changes while the feed has no stream: resumed from the revision after the last one seen."""
    scope = Scope(prefix, prefix=True)
    async with (
        EtcdClient(EtcdConfig((etcd.endpoint,))) as client,
        EtcdClient(EtcdConfig((etcd.endpoint,))) as writer,
        Feed(client) as feed,
    ):
        feed.set_scopes(frozenset({scope}))
        await take(feed, 1)
        first = await put(writer, f"{prefix}first")
        assert (await take(feed, 1))[0].mod_revision == first
        await asyncio.to_thread(etcd.restart)
        keys = tuple(f"{prefix}{n:03}" for n in range(125))
        revisions = [await put(writer, *keys, value=bytes(500)) for _ in range(80)]
        seen = await take(feed, 10_000)
    assert [item.mod_revision for item in seen] == [revision for revision in revisions for _ in range(125)]


async def test_changes_during_restarts_arrive_once_each_in_order(etcd, prefix):
    config = EtcdConfig((etcd.endpoint,), call_timeout_s=10)
    async with EtcdClient(config) as client, EtcdClient(config) as writer, Feed(client) as feed:
        feed.set_scopes(frozenset({Scope(prefix, prefix=True)}))
        await take(feed, 1)
        written = []
        for _ in range(2):
            written += [await put(writer, f"{prefix}{n}") for n in range(10)]
            await asyncio.to_thread(etcd.restart)
        written += [await put(writer, f"{prefix}{n}") for n in range(10)]
        assert [item.mod_revision for item in await take(feed, 30)] == written


async def test_what_was_compacted_meanwhile_is_listed_again(etcd, prefix):
    config = EtcdConfig((etcd.endpoint,))
    quiet = Scope(f"{prefix}quiet")
    busy = Scope(f"{prefix}busy/", prefix=True)
    async with EtcdClient(config) as client, EtcdClient(config) as writer, Feed(client) as feed:
        feed.set_scopes(frozenset({quiet, busy}))
        await take(feed, 2)
        await put(writer, f"{busy.key}1")
        await take(feed, 1)
        await asyncio.to_thread(etcd.kill)
        # While the feed is away: write and compact on the same data through a port it does not know.
        known, etcd.port = etcd.port, free_ports(1)[0]
        await asyncio.to_thread(etcd.start)
        async with EtcdClient(EtcdConfig((etcd.endpoint,))) as elsewhere:
            await put(elsewhere, f"{busy.key}2")
            latest = await put(elsewhere, f"{busy.key}3")
            await compact(elsewhere, latest)
        await asyncio.to_thread(etcd.kill)
        etcd.port = known
        await asyncio.to_thread(etcd.start)
        items = await take(feed, 2)
        assert {item.scope for item in items} == {quiet, busy}
        [busy_again] = [item for item in items if item.scope == busy]
        assert [item.key for item in busy_again.items] == [f"{busy.key}{n}" for n in (1, 2, 3)]
        later = await put(writer, quiet.key)
        assert (await take(feed, 1))[0].mod_revision == later


async def test_a_frozen_endpoint_is_left_after_its_silence(prefix):
    """It holds the connection open and says nothing; the second endpoint takes over and nothing is lost."""
    created = []
    moved = asyncio.Event()

    def watch(number):
        async def serve(requests, context):
            async for request in requests:
                if request.HasField("create_request"):
                    created.append((number, request.create_request.start_revision))
                    if number == 1:
                        moved.set()
                    watch_id = request.create_request.watch_id
                    yield messages.WatchResponse(header=HEADER, watch_id=watch_id, created=True)
                elif number == 1 and request.HasField("progress_request"):
                    yield messages.WatchResponse(header=HEADER, watch_id=-1)

        return serve

    async def txn(request, context):
        return messages.TxnResponse(
            header=HEADER,
            succeeded=True,
            responses=[messages.ResponseOp(response_range=messages.RangeResponse()) for _ in request.success],
        )

    async with (
        FakeEtcd(watch=watch(0), txn=txn) as silent,
        FakeEtcd(watch=watch(1), txn=txn) as good,
        EtcdClient(EtcdConfig((silent.endpoint, good.endpoint))) as client,
        Feed(client, silence_s=0.2) as feed,
    ):
        feed.set_scopes(frozenset({Scope(prefix)}))
        await take(feed, 1)
        await asyncio.wait_for(moved.wait(), 10)
        await asyncio.sleep(0.8)  # four silences: an endpoint that answers progress requests is kept
        assert created == [(0, 2), (1, 2)]


@pytest.mark.parametrize("answers", [False, True])
async def test_where_others_got_no_answer_a_watch_asks_at_once_and_leaves_if_it_gets_none_either(
    prefix, answers, monkeypatch
):
    """A lost node says nothing: what a renewal has found out, the watch need not find out by its own patience."""
    if answers:
        monkeypatch.setattr(watch_stream, "DOUBTED_S", 2.0)  # more than a busy machine takes to answer
    created, asked = [], []
    watched, moved = asyncio.Event(), asyncio.Event()

    def watch(number):
        async def serve(requests, context):
            async for request in requests:
                if request.HasField("create_request"):
                    created.append(number)
                    (watched, moved)[number].set()
                    watch_id = request.create_request.watch_id
                    yield messages.WatchResponse(header=HEADER, watch_id=watch_id, created=True)
                elif request.HasField("progress_request"):
                    asked.append(number)
                    if answers:
                        moved.set()
                        yield messages.WatchResponse(header=HEADER, watch_id=-1)

        return serve

    async def txn(request, context):
        empty = messages.ResponseOp(response_range=messages.RangeResponse())
        return messages.TxnResponse(header=HEADER, succeeded=True, responses=[empty for _ in request.success])

    async with (
        FakeEtcd(watch=watch(0), txn=txn) as lost,
        FakeEtcd(watch=watch(1), txn=txn) as good,
        EtcdClient(EtcdConfig((lost.endpoint, good.endpoint))) as client,
        Feed(client, silence_s=3600) as feed,
    ):
        feed.set_scopes(frozenset({Scope(prefix)}))
        await take(feed, 1)
        async with asyncio.timeout(20):
            await watched.wait()
            while not moved.is_set():  # the first may come before the client knows that it watches
                client.caller.pool.failed(client.caller.pool.connections[0])
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(moved.wait(), 1.0)
            if answers:
                await asyncio.sleep(2.5)
        assert created == ([0] if answers else [0, 1])
        assert set(asked) == {0}


async def test_fragments_count_only_when_the_last_one_is_there(prefix):
    """The first stream ends between two fragments of one revision: the second brings it whole, once."""
    starts = []

    def event(key, revision):
        return mvcc.Event(kv=mvcc.KeyValue(key=key.encode(), mod_revision=revision))

    async def watch(requests, context):
        async for request in requests:
            if not request.HasField("create_request"):
                continue
            starts.append(request.create_request.start_revision)
            watch_id = request.create_request.watch_id
            whole = [event(f"{prefix}a", 2), event(f"{prefix}b", 2)]
            yield messages.WatchResponse(header=HEADER, watch_id=watch_id, created=True)
            yield messages.WatchResponse(header=HEADER, watch_id=watch_id, fragment=True, events=whole[:1])
            if len(starts) == 1:
                return
            yield messages.WatchResponse(header=HEADER, watch_id=watch_id, events=whole[1:])

    async def txn(request, context):
        empty = messages.ResponseOp(response_range=messages.RangeResponse())
        return messages.TxnResponse(header=HEADER, succeeded=True, responses=[empty])

    async with (
        FakeEtcd(watch=watch, txn=txn) as server,
        EtcdClient(EtcdConfig((server.endpoint,))) as client,
        Feed(client) as feed,
    ):
        feed.set_scopes(frozenset({Scope(prefix, prefix=True)}))
        _, *events = await take(feed, 3)
    assert starts == [2, 2]
    assert [item.key for item in events] == [f"{prefix}a", f"{prefix}b"]


async def test_an_etcd_restarted_empty_ends_the_feed(etcd, prefix):
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client, Feed(client) as feed:
        feed.set_scopes(frozenset({Scope(prefix)}))
        await take(feed, 1)
        await put(client, prefix)
        await take(feed, 1)
        etcd.kill()
        etcd.wipe()
        await asyncio.to_thread(etcd.start)
        with pytest.raises(ForeignClusterError, match="lost its data"):
            await take(feed, 1)


async def test_an_error_of_the_block_comes_out_as_it_is(client, prefix):
    async def fail():
        async with Feed(client) as feed:
            feed.set_scopes(frozenset({Scope(prefix)}))
            await take(feed, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
