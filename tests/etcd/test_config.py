from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_async import etcd as room
from nvrx_async.etcd import (
    ConfigurationError,
    Credentials,
    Endpoint,
    EtcdConfig,
    InvalidEndpointError,
    Tls,
    TlsFileError,
    is_loopback,
    parse_endpoint,
)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("node-1:2379", Endpoint("node-1", 2379)),
        ("10.0.0.1:2379", Endpoint("10.0.0.1", 2379)),
        ("http://node:80", Endpoint("node", 80, secure=False)),
        ("https://node.example.org:2379/", Endpoint("node.example.org", 2379, secure=True)),
        ("[::1]:2379", Endpoint("::1", 2379)),
        ("https://[2001:db8::0:1]:1", Endpoint("2001:db8::1", 1, secure=True)),
    ],
)
def test_endpoints_in_all_spellings(text, endpoint):
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no port"),
        ("node", "no port"),
        (":2379", "no port"),
        ("::1:2379", "without brackets"),
        ("[node]:2379", "no IPv6 address"),
        ("node:http", "'http' for a port"),
        ("node:0", "'0' for a port"),
        ("node:65536", "'65536' for a port"),
        ("node:²", "for a port"),
        ("ftp://node:1", "scheme 'ftp'"),
        ("http://node:1/v3", "more than a host and a port"),
        ("no de:1", "for a host name"),
    ],
)
def test_a_wrong_endpoint_is_named_with_the_one_thing_that_is_wrong(text, reason):
    with pytest.raises(InvalidEndpointError, match=reason) as caught:
        parse_endpoint(text)
    assert repr(text) in str(caught.value)
    assert "hint: " in str(caught.value)


@pytest.mark.parametrize(
    "text", ["http://u:hush@h:1", "hush@h:1", "u:hush@", "u:a@hush@h:1", "ftp://hush:x@h:1/"]
)
def test_a_password_in_an_endpoint_is_not_repeated(text):
    with pytest.raises(InvalidEndpointError, match="holds a user or a password") as caught:
        parse_endpoint(text)
    assert "hush" not in str(caught.value) + caught.value.endpoint
    assert "NVRX_ETCD_PASSWORD" in str(caught.value)


def test_the_same_endpoint_twice_is_one():
    assert len(EtcdConfig(("a:1", "http://a:1", "b:1")).parsed()) == 2


def test_no_endpoint_at_all():
    with pytest.raises(InvalidEndpointError, match="missing"):
        EtcdConfig(())


def test_tls_makes_endpoints_without_scheme_secure_and_contradicts_http():
    tls = Tls(ca_file=Path("ca.pem"))
    assert EtcdConfig(("a:1",), tls=tls).parsed()[0].secure
    assert not EtcdConfig(("a:1",)).parsed()[0].secure
    with pytest.raises(InvalidEndpointError, match="says http, but TLS"):
        EtcdConfig(("http://a:1",), tls=tls)


def test_a_certificate_needs_its_key():
    with pytest.raises(TlsFileError, match="only one was given"):
        Tls(cert_file=Path("cert.pem"))


def test_a_password_is_never_shown():
    credentials = Credentials("root", "s3cret")
    assert "s3cret" not in repr(credentials)
    assert "s3cret" not in repr(EtcdConfig(("a:1",), credentials=credentials))


@pytest.mark.parametrize(("user", "password"), [("", "x"), ("x", ""), ("x", "y" * 73)])
def test_credentials_that_etcd_cannot_hold(user, password):
    with pytest.raises(ConfigurationError):
        Credentials(user, password)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("LocalHost.", True), ("10.0.0.1", False), ("0.0.0.0", False), ("::", False), ("node", False)],
)  # fmt: skip
def test_is_loopback(host, loopback):
    assert is_loopback(host) is loopback


def test_types_and_configuration_load_no_grpc():
    """The machines speak in these types; and a rank that imports a record must not pay for gRPC."""
    code = (
        "import sys, nvrx_async.etcd, nvrx_async.etcd.types, nvrx_async.etcd.config, nvrx_async.etcd.errors\n"
        "nvrx_async.etcd.EtcdConfig(('a:1',))\n"
        "print('grpc' in sys.modules, 'anyio' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_every_exported_name_is_there():
    assert [name for name in room.__all__ if getattr(room, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = room.Nothing


def test_grpc_is_loaded_without_its_fork_handlers():
    code = "import os, nvrx_async.etcd.wire; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "0"
