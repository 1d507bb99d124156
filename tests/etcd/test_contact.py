"""The first contact, and what is said when there is none; with TLS and without."""

from __future__ import annotations

import asyncio
import socket

import pytest
from support.certificates import Authority
from support.etcd_server import EtcdProcess, etcd_folder, free_ports
from support.fake_etcd import FakeEtcd

from nvrx_async.etcd import (
    Credentials,
    EtcdClient,
    EtcdConfig,
    Feed,
    ForeignClusterError,
    RequestRefusedError,
    Session,
    Tls,
    TlsError,
    TlsFileError,
    UnavailableError,
    contact,
)
from nvrx_async.etcd.types import Put, Scope, Txn


async def test_any_endpoint_that_answers_will_do(shared_etcd, prefix):
    dead = [f"127.0.0.1:{port}" for port in free_ports(2)]
    async with EtcdClient(
        EtcdConfig((dead[0], "no.such.host.invalid:1", shared_etcd.endpoint, dead[1]))
    ) as client:
        status = await client.first_contact(10)
        assert status.cluster_id == client.cluster_id
        assert (await client.commit(Txn((), (Put(prefix, b""),)))).succeeded


async def test_endpoints_of_different_clusters_are_refused_whichever_answers_first(
    shared_etcd, etcd, monkeypatch
):
    """An agent that was started again knows no cluster id: it would follow the first to answer, perhaps a rival."""
    monkeypatch.setattr(contact, "_OTHERS_S", 10.0)
    for endpoints in ((shared_etcd.endpoint, etcd.endpoint), (etcd.endpoint, shared_etcd.endpoint)):
        async with EtcdClient(EtcdConfig(endpoints)) as client:
            with pytest.raises(ForeignClusterError, match="belong to different clusters") as caught:
                await client.first_contact(10)
        assert any(endpoint in str(caught.value) for endpoint in endpoints)


async def test_a_host_name_works_as_an_address_does(shared_etcd):
    async with EtcdClient(EtcdConfig((f"http://localhost:{shared_etcd.port}",))) as client:
        await client.first_contact(10)


async def test_each_address_is_named_with_what_it_said():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        refusing = free_ports(1)[0]
        endpoints = (
            f"localhost:{refusing}",
            f"127.0.0.1:{mute.getsockname()[1]}",
            "no.such.host.invalid:2379",
        )
        async with EtcdClient(EtcdConfig(endpoints)) as client:
            with pytest.raises(UnavailableError, match=r"within 0\.3 s") as caught:
                await client.first_contact(0.3)
    said = str(caught.value)
    assert f"localhost:{refusing} resolves to 127.0.0.1:{refusing}: Connect call failed" in said or (
        "errno 111" in said
    )
    assert "accepts connections, but no etcd answers" in said
    assert "no.such.host.invalid:2379: the name does not resolve" in said
    assert "hint: is etcd running" in said


async def test_an_etcd_that_comes_up_later_is_waited_for(etcd):
    etcd.kill()
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client:
        contact = asyncio.create_task(client.first_contact(20))
        await asyncio.to_thread(etcd.start)
        assert (await contact).version


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    return Authority(folder, "ours"), Authority(folder, "theirs")


@pytest.fixture(scope="module")
def secure(authorities):
    """Wants a client certificate of our authority; its own names only `etcd.test` and 127.0.0.1."""
    ours, _ = authorities
    pair = ours.sign("server", "etcd.test", "127.0.0.1")
    flags = [
        f"--cert-file={pair.cert}",
        f"--key-file={pair.key}",
        f"--trusted-ca-file={ours.ca_file}",
        "--client-cert-auth",
    ]
    with etcd_folder() as folder:
        server = EtcdProcess(folder, flags=flags, secure=True).start(wait=False)
        yield server
        server.kill()


@pytest.fixture(scope="module")
def tls(authorities):
    ours, _ = authorities
    pair = ours.sign("client")
    return Tls(ca_file=ours.ca_file, cert_file=pair.cert, key_file=pair.key)


async def test_mutual_tls_for_calls_watch_and_lease(secure, tls, prefix):
    async with EtcdClient(EtcdConfig((secure.endpoint,), tls=tls)) as client:
        await client.first_contact(10)
        async with Session(client) as session, Feed(client) as feed:
            feed.set_scopes(frozenset({Scope(prefix)}))
            await anext(feed)
            await client.commit(Txn((), (Put(prefix, b"", lease=session.lease_id),)))
            assert (await anext(feed)).key == prefix


async def test_the_name_in_the_certificate_may_be_another_than_the_hosts(secure, tls):
    named = Tls(tls.ca_file, tls.cert_file, tls.key_file, server_name="etcd.test")
    async with EtcdClient(EtcdConfig((f"https://localhost:{secure.port}",), tls=named)) as client:
        await client.first_contact(10)


async def test_a_wrong_authority_is_said_at_once(secure, tls, authorities):
    wrong = Tls(authorities[1].ca_file, tls.cert_file, tls.key_file)
    async with EtcdClient(EtcdConfig((secure.endpoint,), tls=wrong)) as client:
        with pytest.raises(
            TlsError, match="certificate is not trusted: unable to get local issuer"
        ) as caught:
            await asyncio.wait_for(client.first_contact(600), 20)
    assert "CA file" in caught.value.hint


async def test_a_wrong_server_name_is_said(secure, tls):
    async with EtcdClient(EtcdConfig((f"https://localhost:{secure.port}",), tls=tls)) as client:
        with pytest.raises(TlsError, match=r"[Hh]ostname mismatch"):
            await asyncio.wait_for(client.first_contact(600), 20)


async def test_a_missing_client_certificate_is_said(secure, tls):
    async with EtcdClient(EtcdConfig((secure.endpoint,), tls=Tls(tls.ca_file))) as client:
        with pytest.raises(TlsError, match=r"(?i)certificate"):
            await asyncio.wait_for(client.first_contact(600), 20)


async def test_tls_towards_a_server_without(shared_etcd, tls):
    async with EtcdClient(EtcdConfig((shared_etcd.endpoint,), tls=tls)) as client:
        with pytest.raises(UnavailableError, match=r"in the TLS handshake|WRONG_VERSION_NUMBER"):
            await client.first_contact(0.5)


async def test_no_tls_towards_a_server_with(secure):
    async with EtcdClient(EtcdConfig((secure.endpoint,))) as client:
        with pytest.raises(UnavailableError, match="does it want https"):
            await client.first_contact(0.5)


async def test_tls_files_are_checked_before_anything_is_sent(tmp_path, tls, authorities):
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    other = authorities[0].sign("other")
    for wrong, said in [
        (Tls(tmp_path / "missing.pem"), "cannot be read: No such file"),
        (Tls(broken), "no PEM certificate"),
        (Tls(tls.ca_file, tls.cert_file, other.key), "cannot be used together"),
    ]:
        with pytest.raises(TlsFileError, match=said):
            async with EtcdClient(EtcdConfig(("a:1",), tls=wrong)):
                raise AssertionError("entered with wrong files")


async def test_what_a_quorum_refuses_is_refused_though_another_endpoint_is_silent():
    """As an agent with a wrong token is while its own member waits, alone, for others of its kind."""
    async with FakeEtcd() as one, FakeEtcd() as other:  # which know no Authenticate
        endpoints = (one.endpoint, other.endpoint, "127.0.0.1:1")
        async with EtcdClient(EtcdConfig(endpoints, credentials=Credentials("root", "x"))) as client:
            with pytest.raises(RequestRefusedError):
                await client.first_contact(3)
