"""Where etcd is and how to be let in: endpoints, TLS files, user and password."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nvrx_async.etcd.errors import ConfigurationError, InvalidEndpointError, TlsFileError

if TYPE_CHECKING:
    from pathlib import Path

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,253}[A-Za-z0-9_.])?")
_MAX_PORT = 65535
_MAX_PASSWORD_BYTES = 72  # bcrypt, which etcd stores passwords with, takes no more


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of etcd. Without a scheme `secure` is None: TLS is used if it is configured."""

    host: str
    port: int
    secure: bool | None = None

    @property
    def address(self) -> str:
        """`host:port`, with an IPv6 host in brackets."""
        return join_host_port(self.host, self.port)

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files.

    Without `ca_file` the system's authorities are trusted. With `cert_file` and `key_file` the client shows a
    certificate of its own. `server_name` is expected in the server's certificate instead of the host.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None

    @property
    def serves(self) -> bool:
        """Whether a server can use them too, and tell its clients by their certificates."""
        return None not in (self.ca_file, self.cert_file, self.key_file)

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise TlsFileError(
                "a client certificate needs both its certificate file and its key file, only one was given"
            )


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password of etcd. The password is never shown."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or not self.password:
            raise ConfigurationError("etcd credentials need a user and a password, one of them is empty")
        if len(self.password.encode()) > _MAX_PASSWORD_BYTES:
            raise ConfigurationError(f"the etcd password is longer than {_MAX_PASSWORD_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """How to reach etcd.

    `call_timeout_s` bounds one attempt at one endpoint; a call ends after every endpoint had one.

    Raises:
        InvalidEndpointError: an endpoint cannot be read, contradicts `tls`, or there is none.
    """

    endpoints: tuple[str, ...]
    tls: Tls | None = None
    credentials: Credentials | None = None
    call_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidEndpointError("", "is missing: at least one is needed")
        if self.call_timeout_s <= 0:
            raise ConfigurationError(f"call_timeout_s must be above 0, not {self.call_timeout_s}")
        self.parsed()

    def parsed(self) -> tuple[Endpoint, ...]:
        """The endpoints, each once and with `secure` decided."""
        found: dict[Endpoint, None] = {}
        for text in self.endpoints:
            endpoint = parse_endpoint(text)
            if endpoint.secure is False and self.tls is not None:
                raise InvalidEndpointError(text, "says http, but TLS files are given")
            secure = self.tls is not None if endpoint.secure is None else endpoint.secure
            found[Endpoint(endpoint.host, endpoint.port, secure)] = None
        return tuple(found)


def parse_endpoint(text: str) -> Endpoint:
    """Read `host:port`, `[v6]:port`, `http://…` or `https://…`.

    Raises:
        InvalidEndpointError: with the one thing that is wrong.
    """
    scheme, separator, rest = text.strip().rpartition("://")
    if separator and scheme not in {"http", "https"}:
        raise InvalidEndpointError(text, f"has the scheme {scheme!r}; etcd is reached by http or https")
    rest = rest.removesuffix("/")
    if "/" in rest or "@" in rest or "?" in rest:
        raise InvalidEndpointError(text, "holds more than a host and a port")
    host, _, port = rest.rpartition(":")
    if not host or host.endswith(":"):
        raise InvalidEndpointError(text, "has no port")
    secure = scheme == "https" if separator else None
    return Endpoint(_checked_host(text, host), _checked_port(text, port), secure)


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`: a loopback address, or the name `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_tls_files(tls: Tls) -> None:
    """Read all files as TLS will (blocking: call it in a thread).

    Raises:
        TlsFileError: a file is missing or unreadable, is no PEM, or key and certificate do not belong
        together.
    """
    context = ssl_context(tls)
    if tls.ca_file is not None and not context.get_ca_certs():
        raise TlsFileError(
            f"CA file {tls.ca_file} holds no authority's certificate",
            hint="give the certificate of the authority that signed etcd's certificate, in PEM",
        )


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """The standard library's view of `tls`, for checks and diagnosis. Blocks on files."""
    for what, path in (("CA", tls.ca_file), ("certificate", tls.cert_file), ("key", tls.key_file)):
        if path is not None:
            _check_readable(what, path)
    try:
        context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
    except ssl.SSLError as error:
        raise TlsFileError(f"CA file {tls.ca_file} is no PEM certificate", evidence=(str(error),)) from error
    if tls.cert_file is not None and tls.key_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except ssl.SSLError as error:
            raise TlsFileError(
                f"certificate {tls.cert_file} and key {tls.key_file} cannot be used together",
                evidence=(str(error),),
                hint="both must be PEM, and the key must be the one the certificate was made for",
            ) from error
    return context


def _check_readable(what: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise TlsFileError(f"{what} file {path} cannot be read: {error.strerror}") from error


def _checked_host(text: str, host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise InvalidEndpointError(text, f"has brackets around {host[1:-1]!r}, no IPv6 address") from None
    if ":" in host:
        raise InvalidEndpointError(text, "has an IPv6 address without brackets")
    if not _HOST_NAME.fullmatch(host):
        raise InvalidEndpointError(text, f"has {host!r} for a host name")
    return host


def _checked_port(text: str, port: str) -> int:
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
        raise InvalidEndpointError(text, f"has {port!r} for a port, not a number from 1 to {_MAX_PORT}")
    return int(port)
