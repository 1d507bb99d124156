"""How an agent reaches etcd: one that is there, or one that it starts."""

from __future__ import annotations

import os
import socket
from contextlib import AsyncExitStack, ExitStack

import anyio
import anyio.lowlevel
import pytest
from grpc.aio import init_grpc_aio
from support.etcd_server import etcd_process, free_ports

from nvrx_async.etcd import (
    AddressInUseError,
    AuthenticationError,
    EtcdClient,
    Feed,
    PermissionDeniedError,
    UnavailableError,
)
from nvrx_async.etcd import EtcdConfig as ClientConfig
from nvrx_async.etcd.types import CreatedAt, Delete, Listing, Put, Scope, Txn
from nvrx_launcher import reach as module
from nvrx_launcher.config import EmbeddedEtcd, EtcdConfig
from nvrx_launcher.errors import NotReadyError
from nvrx_launcher.reach import reach
from nvrx_launcher.store import EtcdStore

init_grpc_aio()


@pytest.fixture(scope="module")
def external():
    with etcd_process() as server:
        yield server


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch):
    monkeypatch.setattr(module, "FIRST_LOOK_S", 0.3)


class Reach:
    """Reaches as an agent of this host would, and notes what it says."""

    def __init__(self, folder):
        self.folder, self.said = folder, []

    def __call__(
        self, endpoint="", embedded=EmbeddedEtcd.AUTO, *, others=(), token=None, address=None, wait_s=10.0
    ):
        endpoints = (endpoint, *others) if endpoint else ()
        return reach(
            EtcdConfig(endpoints, embedded),
            local_address=address,
            job_token=token,
            log_file=self.folder / "etcd.log",
            say=self.said.append,
            wait_s=wait_s,
            cluster_wait_s=wait_s,
        )


@pytest.fixture
def reaching(tmp_path):
    return Reach(tmp_path)


def free_endpoint(host="127.0.0.1"):
    return f"{host}:{free_ports(1)[0]}"


def alive(pid):
    return os.path.exists(f"/proc/{pid}")


async def works(client):
    result = await client.commit(Txn((), (Put("/test/reach", b"x"),)))
    return result.succeeded


async def test_an_etcd_that_is_there_is_used(reaching, external):
    async with reaching(external.endpoint) as etcd:
        assert etcd.server is None
        assert await works(etcd.client)
        assert etcd.address == "127.0.0.1"
        assert etcd.where == f"etcd at {external.endpoint}"
    assert reaching.said == []


async def test_the_address_a_person_gives_wins(reaching, external):
    async with reaching(external.endpoint, address="10.9.8.7") as etcd:
        assert etcd.address == "10.9.8.7"


async def test_one_endpoint_whose_name_is_gone_hides_no_address(monkeypatch):
    def look_up(host, port):
        if host == "gone":
            raise OSError(-2, "Name or service not known")
        return "10.0.0.7"

    monkeypatch.setattr(module, "own_address", look_up)
    assert await module._address(EtcdConfig(("gone:1", "there:1"), EmbeddedEtcd.OFF), None) == "10.0.0.7"
    with pytest.raises(NotReadyError, match=r"gone: Name or service not known") as caught:
        await module._address(EtcdConfig(("gone:1",), EmbeddedEtcd.OFF), None)
    assert "--local-addr" in caught.value.hint


async def test_one_is_started_where_the_endpoint_names_this_host_and_nobody_answers(reaching):
    endpoint = free_endpoint("localhost")
    async with reaching(endpoint) as etcd:
        assert etcd.server is not None
        assert await works(etcd.client)
        assert etcd.where.startswith("etcd 3.")
        assert "started here" in etcd.where
        pid = etcd.server.pid
        async with reaching(endpoint) as second:
            assert second.server is None, "now one answers"
    assert not alive(pid)


async def test_a_private_one_is_for_this_host(reaching):
    async with reaching(embedded=EmbeddedEtcd.PRIVATE) as etcd:
        assert await works(etcd.client)
        assert etcd.address == "127.0.0.1"
        pid = etcd.server.pid
    assert not alive(pid)


async def test_two_agents_that_race_share_the_one_that_was_faster(reaching):
    endpoint, servers = free_endpoint(), []
    both = anyio.Event()

    async def agent():
        async with reaching(endpoint) as etcd:
            assert await works(etcd.client)
            servers.append(etcd.server)
            if len(servers) == 2:
                both.set()
            await both.wait()  # the server ends with its agent

    with anyio.fail_after(30):
        async with anyio.create_task_group() as agents:
            agents.start_soon(agent)
            agents.start_soon(agent)
    assert servers.count(None) == 1


async def test_a_port_that_something_else_has_is_told(reaching, monkeypatch):
    monkeypatch.setattr(module, "STARTING_S", 0.5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(AddressInUseError):
            async with reaching(f"127.0.0.1:{other.getsockname()[1]}"):
                pass


@pytest.mark.parametrize("embedded", [EmbeddedEtcd.OFF, EmbeddedEtcd.AUTO])
async def test_an_etcd_of_somebody_else_is_waited_for_and_never_started_here(reaching, monkeypatch, embedded):
    endpoint = free_endpoint()
    if embedded is EmbeddedEtcd.AUTO:
        monkeypatch.setattr(module, "is_own", lambda host: False)
    with pytest.raises(UnavailableError) as caught:
        async with reaching(endpoint, embedded, wait_s=0.3):
            pass
    assert endpoint in str(caught.value)
    assert any("waiting up to 0.3 s for etcd" in line for line in reaching.said)


async def test_ports_of_a_member_that_something_else_has_are_named(reaching):
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        first, *others = (f"127.0.0.1:{one.getsockname()[1]}" for one in listeners)
        with pytest.raises(UnavailableError):
            async with reaching(first, others=others, wait_s=0.3):
                pass
    (told,) = (line for line in reaching.said if "another process has" in line)
    assert all(address in told for address in (first, *others))


async def test_a_token_closes_the_etcd_that_is_started_and_opens_it_for_who_has_the_same(reaching):
    endpoint = free_endpoint()
    async with reaching(endpoint, token="secret") as etcd:
        assert await works(etcd.client)
        async with reaching(endpoint, token="secret") as other:
            assert other.server is None
            assert await works(other.client)
        async with EtcdClient(ClientConfig((endpoint,))) as stranger:
            with pytest.raises((AuthenticationError, PermissionDeniedError)):
                await works(stranger)
        for token, told in (
            ("wrong", "this node's NVRX_JOB_TOKEN"),
            (None, "the same NVRX_JOB_TOKEN on all"),
        ):
            with pytest.raises(AuthenticationError, match=told):
                async with reaching(endpoint, token=token):
                    pass


async def test_a_token_does_no_harm_at_an_etcd_that_asks_for_none(reaching, external):
    async with reaching(external.endpoint, token="secret") as etcd:
        assert await works(etcd.client)


@pytest.mark.parametrize(("token", "warns"), [(None, True), ("secret", False)])
async def test_an_etcd_that_is_open_to_others_is_warned_of(reaching, monkeypatch, token, warns):
    monkeypatch.setattr(module, "is_loopback", lambda host: False)
    async with reaching(free_endpoint(), token=token) as etcd:
        assert etcd.server is not None
    assert any("open to everybody" in line and "NVRX_JOB_TOKEN" in line for line in reaching.said) is warns


# The store of the interpreter ------------------------------------------------------------------------------


async def test_the_store_follows_commits_relists_and_revokes(reaching, external):
    scope, elections = Scope("/store/a/", prefix=True), Scope("/store/e/", prefix=True)
    async with AsyncExitStack() as stack:
        etcd = await stack.enter_async_context(reaching(external.endpoint))
        store = EtcdStore(etcd.client, await stack.enter_async_context(Feed(etcd.client)))
        changes = store.changes()
        store.follow(frozenset({scope}))
        store.follow(frozenset({scope}))
        with anyio.fail_after(20):
            assert await anext(changes) == Listing(scope, (), (await store.relist())[0].revision)
            result = await store.commit(Txn((CreatedAt("/store/a/x", 0),), (Put("/store/a/x", b"1"),)))
            assert result.succeeded
            assert (await anext(changes)).mod_revision == result.revision
            assert not (await store.commit(Txn((CreatedAt("/store/a/x", 0),), ()))).succeeded
            (listing,) = await store.relist()
            assert [held.value for held in listing.items] == [b"1"]
            await store.commit(Txn((), (Delete(scope), Put("/store/e/me", b""))))
            created = (await etcd.client.list(elections)).items[0].create_revision
            assert await store.lead(elections, "/store/e/me", created) is True
            assert await store.lead(elections, "/store/e/me", created - 1) is False
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.deposed, "/store/e/me", created)
                await store.commit(Txn((), (Delete(elections),)))
        await changes.aclose()


async def test_a_lease_that_cannot_be_ended_lapses_by_itself():
    class Away:
        async def revoke(self, lease):
            raise UnavailableError("nobody answers")

    await EtcdStore(Away(), None).revoke(0x99)
