"""etcd for the agent: client, lease session, feed of changes, election, embedded server.

Names are imported on first use (PEP 562): `nvrx_async.etcd.types`, which the machines speak in, and the
configuration must not load gRPC, which takes 0.1 s and which a rank must never do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_async.etcd.client import EtcdClient, Lease, Status
    from nvrx_async.etcd.cluster import ClusterPlan, PlannedMember, check_version, plan_cluster
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
        UnfitVersionError,
    )
    from nvrx_async.etcd.feed import Feed
    from nvrx_async.etcd.member import ClusterMember, MemberSettings
    from nvrx_async.etcd.member_folder import MemberFolder
    from nvrx_async.etcd.roll import ListedMember, list_members
    from nvrx_async.etcd.server import EmbeddedServer, find_binaries, find_binary
    from nvrx_async.etcd.session import Session, boottime

__all__ = [
    "AddressInUseError",
    "AuthenticationError",
    "BinaryNotFoundError",
    "ClusterMember",
    "ClusterPlan",
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
    "ListedMember",
    "MemberFolder",
    "MemberSettings",
    "NoSpaceError",
    "OutcomeUnknownError",
    "PermissionDeniedError",
    "PlannedMember",
    "RequestRefusedError",
    "ServerStartError",
    "Session",
    "Status",
    "Tls",
    "TlsError",
    "TlsFileError",
    "TxnTooLargeError",
    "UnavailableError",
    "UnfitVersionError",
    "boottime",
    "check_version",
    "deposed",
    "find_binaries",
    "find_binary",
    "is_loopback",
    "lead",
    "list_members",
    "parse_endpoint",
    "plan_cluster",
]

_HOME = {
    "nvrx_async.etcd.client": (
        "EtcdClient",
        "Lease",
        "Status",
    ),
    "nvrx_async.etcd.cluster": (
        "ClusterPlan",
        "PlannedMember",
        "check_version",
        "plan_cluster",
    ),
    "nvrx_async.etcd.config": (
        "Credentials",
        "Endpoint",
        "EtcdConfig",
        "Tls",
        "is_loopback",
        "parse_endpoint",
    ),
    "nvrx_async.etcd.election": (
        "deposed",
        "lead",
    ),
    "nvrx_async.etcd.errors": (
        "AddressInUseError",
        "AuthenticationError",
        "BinaryNotFoundError",
        "ConfigurationError",
        "DeposedError",
        "EtcdError",
        "ForeignClusterError",
        "InvalidEndpointError",
        "LeaseNotFoundError",
        "NoSpaceError",
        "OutcomeUnknownError",
        "PermissionDeniedError",
        "RequestRefusedError",
        "ServerStartError",
        "TlsError",
        "TlsFileError",
        "TxnTooLargeError",
        "UnavailableError",
        "UnfitVersionError",
    ),
    "nvrx_async.etcd.feed": ("Feed",),
    "nvrx_async.etcd.member": (
        "ClusterMember",
        "MemberSettings",
    ),
    "nvrx_async.etcd.member_folder": ("MemberFolder",),
    "nvrx_async.etcd.roll": (
        "ListedMember",
        "list_members",
    ),
    "nvrx_async.etcd.server": (
        "EmbeddedServer",
        "find_binaries",
        "find_binary",
    ),
    "nvrx_async.etcd.session": (
        "Session",
        "boottime",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
