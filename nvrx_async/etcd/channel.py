"""One gRPC channel per endpoint, and which of them is in use."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread

from nvrx_async.etcd.config import Endpoint, EtcdConfig, Tls, check_tls_files
from nvrx_async.etcd.wire import grpc, stubs

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

OPTIONS: tuple[tuple[str, int], ...] = (
    # etcd back after a restart is found within a second, an address that swallows packets given up after two.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # etcd closes a connection whose client pings more often than its --grpc-keepalive-min-time (5 s) or
    # without a stream ("too_many_pings", measured: three pings at 2 s end every watch). So pings are the
    # slow net below the fast one: time-outs of renewals and progress requests of the feed notice silence,
    # and tell each other of it.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # etcd is reached directly; a proxy for the web between nodes would only cut streams.
    ("grpc.enable_http_proxy", 0),
)


class Connection:
    """One endpoint's channel and stubs.

    `verified` says that the endpoint has proven to be our cluster since it last failed; without that
    nothing is written through it.
    """

    def __init__(self, endpoint: Endpoint, channel: Any) -> None:
        self.endpoint = endpoint
        self.verified = False
        self._doubt = anyio.Event()
        self.channel = channel
        self.kv: Any = stubs.KVStub(channel)
        self.watch: Any = stubs.WatchStub(channel)
        self.lease: Any = stubs.LeaseStub(channel)
        self.auth: Any = stubs.AuthStub(channel)
        self.maintenance: Any = stubs.MaintenanceStub(channel)
        self.cluster: Any = stubs.ClusterStub(channel)

    def doubt(self) -> None:
        """Somebody got no answer here."""
        self._doubt.set()
        self._doubt = anyio.Event()

    async def doubted(self) -> None:
        """Wait until somebody gets no answer here from now on."""
        await self._doubt.wait()

    def is_ready(self) -> bool:
        """Whether the channel holds a connection now."""
        return bool(self.channel.get_state() is grpc.ChannelConnectivity.READY)


class Pool:
    """All connections; callers use `current` and say which one failed them."""

    def __init__(self, connections: tuple[Connection, ...]) -> None:
        self.connections = connections
        self._index = 0

    @property
    def current(self) -> Connection:
        """The connection in use."""
        return self.connections[self._index]

    def prefer(self, connection: Connection) -> None:
        """Use this one from now on."""
        self._index = self.connections.index(connection)

    def failed(self, connection: Connection) -> None:
        """Go on to the next endpoint, unless another caller already did."""
        connection.verified = False
        if len(self.connections) > 1:  # a stream that is silent too is better off elsewhere
            connection.doubt()
        if connection is self.current:
            self._index = (self._index + 1) % len(self.connections)

    async def close(self) -> None:
        """Close all channels at once, cutting calls in flight."""
        for connection in self.connections:
            await connection.channel.close()


async def open_pool(config: EtcdConfig) -> Pool:
    """Channels to all endpoints; nothing is connected yet.

    Raises:
        TlsFileError: a TLS file is missing or wrong.
    """
    endpoints = config.parsed()
    credentials = None
    tls = config.tls or Tls()
    if any(endpoint.secure for endpoint in endpoints):
        credentials = await anyio.to_thread.run_sync(_load_credentials, tls)
    return Pool(tuple(Connection(endpoint, _open(endpoint, tls, credentials)) for endpoint in endpoints))


def _load_credentials(tls: Tls) -> Any:
    check_tls_files(tls)
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca_file.read_bytes() if tls.ca_file else None,
        private_key=tls.key_file.read_bytes() if tls.key_file else None,
        certificate_chain=tls.cert_file.read_bytes() if tls.cert_file else None,
    )


def _open(endpoint: Endpoint, tls: Tls, credentials: Any) -> Any:
    if not endpoint.secure:
        return grpc.aio.insecure_channel(endpoint.address, options=OPTIONS)
    options: tuple[tuple[str, int | str], ...] = OPTIONS
    if tls.server_name:
        options = (*OPTIONS, ("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(endpoint.address, credentials, options=options)
