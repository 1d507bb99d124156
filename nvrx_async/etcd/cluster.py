"""What a cluster of the job's own nodes looks like: its members, their names and ports. Pure.

All that is in it follows from the list of endpoints and the job, so every node comes to the same plan without asking.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvrx_async.etcd.config import Credentials, Endpoint, join_host_port
from nvrx_async.etcd.errors import ConfigurationError, UnfitVersionError

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = (3, 5)
"""Members of a cluster: an even number tolerates no more losses than one less."""

_MAX_PORT = 65535
_NAME_PREFIX = "nvrx-"
_DIGEST_LENGTH = 12
_TRACE_BYTES = 2
_ITERATIONS = 20_000
_OLDEST = (3, 4, 0)
"""Older ones have no learners, and a member without its data could not come back safely."""
_LOSES_WRITES = ((3, 5, 0), (3, 5, 3))
_STEADY = {(3, 4): 31, (3, 5): 13}


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """One node's etcd: `endpoint` for clients, `peer_url` for the other members, and the name they know it by."""

    name: str
    endpoint: Endpoint
    peer_port: int
    peer_url: str


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The members in the order in which they are named; `token` keeps clusters of different jobs apart.

    `job` is what people call the job.
    """

    token: str
    members: tuple[PlannedMember, ...]
    job: str = ""

    @property
    def quorum(self) -> int:
        """So many members must be up."""
        return len(self.members) // 2 + 1

    @property
    def initial(self) -> str:
        """The value of etcd's `--initial-cluster`."""
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    @property
    def names(self) -> frozenset[str]:
        """What the members are called."""
        return frozenset(member.name for member in self.members)


def plan_cluster(
    endpoints: Sequence[Endpoint], job: str, credentials: Credentials | None = None
) -> ClusterPlan:
    """The cluster that these endpoints form for `job`, of the nodes that know the same password.

    Members of different tokens do not talk to each other. So a node with a wrong password makes no quorum with those
    that have the right one: whose password counted would otherwise hang on who was first.

    The peer port is the client port plus the smallest number that makes no two addresses of the list meet: one
    for 2379 on each host, three for 2379, 2380 and 2381 on one.

    Raises:
        ConfigurationError: not three or five members, or no room for the peer ports.
    """
    count = len(set(endpoints))
    if count not in SIZES:
        raise ConfigurationError(
            f"{count} etcd endpoints name this job's nodes, and etcd members come in threes or fives",
            evidence=(f"{count} members tolerate the loss of {(count - 1) // 2}, as {count - 1} would",)
            if count % 2 == 0
            else (f"each write has to reach {count // 2 + 1} of {count} members",),
            hint="name three or five of the nodes with --rdzv-endpoint, or one",
        )
    ports = {endpoint.port for endpoint in endpoints}
    offset = next(step for step in range(1, len(ports) + _MAX_PORT) if not {p + step for p in ports} & ports)
    if max(ports) + offset > _MAX_PORT:
        raise ConfigurationError(
            f"etcd's members would need port {max(ports) + offset} beside {max(ports)}",
            hint=f"name ports up to {_MAX_PORT - offset}",
        )
    secure = any(endpoint.secure for endpoint in endpoints)
    named = ",".join(sorted(endpoint.address for endpoint in endpoints))
    meant = f"{job} {named} {_trace_of(credentials)}"
    token = f"{_NAME_PREFIX}{hashlib.sha256(meant.encode()).hexdigest()[:_DIGEST_LENGTH]}"
    members = tuple(_planned(endpoint, offset, token, secure=secure) for endpoint in dict.fromkeys(endpoints))
    return ClusterPlan(token, members, job)


def is_planned_name(name: str) -> bool:
    """Whether this is what a job's nodes call a member."""
    return name.startswith(_NAME_PREFIX)


def _trace_of(credentials: Credentials | None) -> str:
    """Tells passwords apart; too little of one to tell it by, since the token is no secret."""
    if credentials is None:
        return ""
    known = f"{credentials.user}:{credentials.password}".encode()
    return hashlib.pbkdf2_hmac("sha256", known, b"nvrx cluster token", _ITERATIONS)[:_TRACE_BYTES].hex()


def _planned(endpoint: Endpoint, offset: int, token: str, *, secure: bool) -> PlannedMember:
    port = endpoint.port + offset
    scheme = "https" if secure else "http"
    url = f"{scheme}://{join_host_port(endpoint.host, port)}"
    return PlannedMember(f"{token}-{endpoint.host}-{endpoint.port}", endpoint, port, url)


def check_version(version: str, where: str) -> str:
    """What to warn of before this etcd becomes a member of a cluster; empty where nothing is to be said.

    Sources: etcd's announcement on 3.5.0 to 3.5.2 (data inconsistency when a member is killed, fixed in 3.5.3);
    etcd #15247 (a leader that was stuck revokes leases in its old term, fixed in 3.4.31 and 3.5.13).

    Raises:
        UnfitVersionError: it may lose what it acknowledged, or lacks learners.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return f"etcd at {where} does not tell its version ({version!r}); a cluster wants 3.4.31, 3.5.13 or newer"
    major, minor, patch = (int(part) for part in found.groups())
    number = (major, minor, patch)
    if _LOSES_WRITES[0] <= number < _LOSES_WRITES[1]:
        raise UnfitVersionError(
            f"etcd {version} may lose acknowledged writes when a member is killed: it serves alone, in no cluster",
            evidence=(f"found at {where}",),
            hint="put etcd 3.4.31, 3.5.13 or newer on PATH, or name a single endpoint",
        )
    if number < _OLDEST:
        raise UnfitVersionError(
            f"etcd {version} is too old for a cluster of the job's nodes",
            evidence=(f"found at {where}",),
            hint="put etcd 3.4.31, 3.5.13 or newer on PATH",
        )
    if patch < _STEADY.get((major, minor), 0):
        return (
            f"etcd {version} can end all leases early after its leader was stuck (etcd #15247): "
            "the job then restarts its ranks; 3.4.31, 3.5.13 and newer do not"
        )
    return ""
