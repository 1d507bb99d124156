"""etcd for the agent: client, lease session, feed of changes, election, embedded server.

Importing it loads gRPC (about 0.1 s), which a rank must never do.
"""

from nvrx_async.etcd.client import EtcdClient, Lease, Status
from nvrx_async.etcd.config import Credentials, Endpoint, EtcdConfig, Tls, is_loopback, parse_endpoint
from nvrx_async.etcd.election import deposed, lead
from nvrx_async.etcd.errors import (
    AddressInUseError,
    AuthenticationError,
    BinaryNotFoundError,
    ConfigurationError,
    DeposedError,
    EtcdError,
    ForeignClusterError,
    InvalidEndpointError,
    LeaseNotFoundError,
    NoSpaceError,
    OutcomeUnknownError,
    PermissionDeniedError,
    RequestRefusedError,
    ServerStartError,
    TlsError,
    TlsFileError,
    TxnTooLargeError,
    UnavailableError,
)
from nvrx_async.etcd.feed import Feed
from nvrx_async.etcd.server import EmbeddedServer, find_binary
from nvrx_async.etcd.session import Session, boottime

__all__ = [
    "AddressInUseError",
    "AuthenticationError",
    "BinaryNotFoundError",
    "ConfigurationError",
    "Credentials",
    "DeposedError",
    "EmbeddedServer",
    "Endpoint",
    "EtcdClient",
    "EtcdConfig",
    "EtcdError",
    "Feed",
    "ForeignClusterError",
    "InvalidEndpointError",
    "Lease",
    "LeaseNotFoundError",
    "NoSpaceError",
    "OutcomeUnknownError",
    "PermissionDeniedError",
    "RequestRefusedError",
    "ServerStartError",
    "Session",
    "Status",
    "Tls",
    "TlsError",
    "TlsFileError",
    "TxnTooLargeError",
    "UnavailableError",
    "boottime",
    "deposed",
    "find_binary",
    "is_loopback",
    "lead",
    "parse_endpoint",
]
