"""User and password against a server whose tokens live seconds and die with it."""

from __future__ import annotations

import asyncio

import pytest
from support.etcd_server import etcd_process
from support.recorder import Recorder

from nvrx_async.etcd import (
    AuthenticationError,
    Credentials,
    EtcdClient,
    EtcdConfig,
    Feed,
    PermissionDeniedError,
    Session,
)
from nvrx_async.etcd.bootstrap import enable_users
from nvrx_async.etcd.types import Listing, Put, Scope, Txn
from nvrx_async.etcd.wire import messages

ROOT = Credentials("root", "pw")


@pytest.fixture
def guarded():
    with etcd_process(flags=["--auth-token-ttl=1", "--bcrypt-cost=4"]) as server:
        yield server


def config(server, credentials=ROOT):
    return EtcdConfig((server.endpoint,), credentials=credentials)


async def test_a_wrong_password_and_none_at_all(guarded):
    await enable_users(guarded.endpoint, ROOT)
    async with EtcdClient(config(guarded, Credentials("root", "no"))) as client:
        with pytest.raises(AuthenticationError, match="does not accept"):
            await client.get("a")
        with pytest.raises(AuthenticationError, match="does not accept"):
            await client.first_contact(5)
    async with EtcdClient(config(guarded, None)) as client:
        with pytest.raises(AuthenticationError, match="none was given"):
            await client.first_contact(5)


async def test_credentials_for_an_etcd_that_asks_nobody_do_no_harm(shared_etcd, prefix):
    async with EtcdClient(config(shared_etcd)) as client:
        await client.first_contact(5)
        assert (await client.commit(Txn((), (Put(prefix, b""),)))).succeeded


async def test_users_enabled_under_a_running_client(guarded, prefix):
    """And every token dies with the server: reads, writes, watch and lease go on with a new one."""
    renewed = Recorder()
    async with EtcdClient(config(guarded)) as client:
        await client.get(prefix)
        async with Session(client, ttl_s=10, on_renewed=renewed) as session, Feed(client) as feed:
            feed.set_scopes(frozenset({Scope(prefix, prefix=True)}))
            assert isinstance(await anext(feed), Listing)
            await enable_users(guarded.endpoint, ROOT)
            assert (await client.commit(Txn((), (Put(f"{prefix}0", b""),)))).succeeded
            assert (await anext(feed)).key == f"{prefix}0"
            for turn in ("1", "2"):
                await asyncio.to_thread(guarded.restart)
                before = len(renewed.values)
                session.renew_now()
                key = f"{prefix}{turn}"
                async with asyncio.timeout(10):
                    assert (await client.commit(Txn((), (Put(key, b"", lease=session.lease_id),)))).succeeded
                    assert (await anext(feed)).key == key
                    await renewed.reached(before + 1)
            assert not session.lost.is_set()


async def test_a_token_that_ran_out_is_renewed_for_calls_and_new_watches(guarded, prefix):
    await enable_users(guarded.endpoint, ROOT)
    async with EtcdClient(config(guarded)) as client, Feed(client) as feed:
        feed.set_scopes(frozenset({Scope(f"{prefix}a")}))
        await anext(feed)
        stale = client.caller.tokens._token
        async with asyncio.timeout(20):
            while not await _is_refused(client, stale):
                continue
        feed.set_scopes(frozenset({Scope(f"{prefix}a"), Scope(f"{prefix}b")}))
        assert (await anext(feed)).scope == Scope(f"{prefix}b")
        await client.commit(Txn((), (Put(f"{prefix}a", b""), Put(f"{prefix}b", b""))))
        assert {(await anext(feed)).key for _ in range(2)} == {f"{prefix}a", f"{prefix}b"}
        assert client.caller.tokens._token != stale


async def _is_refused(client, token):
    """Asks with this very token, at intervals longer than its life: using it would prolong it."""
    await asyncio.sleep(1.6)
    call = client.caller.pool.current.kv.Range(messages.RangeRequest(key=b"a"), metadata=(("token", token),))
    return "invalid auth token" in (await call.details() or "")


async def test_a_user_that_may_not_touch_a_key(guarded, prefix):
    await enable_users(guarded.endpoint, ROOT)
    async with EtcdClient(config(guarded)) as root:
        auth = root.caller
        await auth.repeat(lambda at: at.auth.UserAdd, messages.AuthUserAddRequest(name="poor", password="pw"))
    async with EtcdClient(config(guarded, Credentials("poor", "pw"))) as client:
        assert (await client.first_contact(5)).version
        with pytest.raises(PermissionDeniedError, match="grant-permission"):
            await client.commit(Txn((), (Put(prefix, b""),)))
        async with Feed(client) as feed:
            feed.set_scopes(frozenset({Scope(prefix)}))
            with pytest.raises(PermissionDeniedError):
                await anext(feed)
