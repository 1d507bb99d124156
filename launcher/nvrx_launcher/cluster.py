"""etcd at several endpoints: one that is there, or the cluster that this job's own nodes form.

Each node that an endpoint names runs one member. Which one is decided the same way whether there is one agent on a
host or several: an agent takes the first named address of its host whose folder it can lock. A lock lasts as long as
its process.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from nvrx_async.aside import aside
from nvrx_async.etcd import (
    AuthenticationError,
    ClusterMember,
    ClusterPlan,
    ConfigurationError,
    Endpoint,
    EtcdClient,
    EtcdError,
    MemberFolder,
    MemberSettings,
    PlannedMember,
    ServerStartError,
    TlsError,
    UnavailableError,
    UnfitVersionError,
    check_version,
    find_binaries,
    is_loopback,
    list_members,
    plan_cluster,
)
from nvrx_async.etcd import EtcdConfig as ClientConfig
from nvrx_async.etcd.cluster import SIZES, is_planned_name
from nvrx_async.etcd.config import join_host_port
from nvrx_async.etcd.owner import Owner
from nvrx_async.etcd.server import bound
from nvrx_launcher.addresses import is_own, own_address, unreachable
from nvrx_launcher.errors import UsageError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MISSING_FIRST_S = 2.0
MISSING_EVERY_S = 10.0
"""How often a person is told who is missing, while the cluster cannot form."""
VERSION_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The member that is this agent's to run."""

    plan: ClusterPlan
    own: PlannedMember
    folder: MemberFolder
    listen_ip: str


@dataclass(frozen=True, slots=True)
class Occupied:
    """No member is this agent's to run. `ports`: those of addresses that name this host, which no agent holds."""

    ports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where to meet: the client's settings, and the job whose cluster it may be. `may_start`: no etcd is forbidden."""

    settings: ClientConfig
    job: str
    log_file: Path
    may_start: bool


async def reach_several(
    stack: AsyncExitStack,
    meeting: Meeting,
    connect: Callable[[float], Awaitable[EtcdClient]],
    *,
    look_s: float,
    wait_s: float,
    say: Callable[[str], None],
) -> tuple[ClusterMember | None, EtcdClient]:
    """A client of the etcd at several endpoints, and this node's member where it runs one.

    `connect` makes a client after its first contact within a time. What answers as somebody else's is used as it is.

    Raises:
        EtcdError: nothing answers, the member does not start, or the nodes named cannot form a cluster.
    """
    client = None
    try:
        client = await connect(look_s)
    except TlsError:
        raise
    except UnavailableError as error:
        cause = error.cause
    if client is not None:
        await _refuse_open_strangers(client, meeting)
    member = await _own_member(stack, meeting, client, say) if meeting.may_start else None
    if client is not None:
        return member, client
    if member is None:
        say(f"waiting up to {wait_s:g} s for etcd: {cause}")
        return None, await connect(wait_s)
    async with anyio.create_task_group() as telling:
        telling.start_soon(_tell_who_is_missing, member, say)
        formed = await connect(wait_s)
        await _refuse_open_strangers(formed, meeting)
        member.others_are_up()
        telling.cancel_scope.cancel()
    return member, formed


async def _own_member(
    stack: AsyncExitStack, meeting: Meeting, client: EtcdClient | None, say: Callable[[str], None]
) -> ClusterMember | None:
    endpoints = meeting.settings.parsed()
    if client is not None and (len(endpoints) not in SIZES or not await _is_ours(client, meeting)):
        return None
    if not await resolving(_names_this_host, endpoints):
        return None
    try:
        plan = plan_cluster(endpoints, meeting.job, meeting.settings.credentials)
    except ConfigurationError as error:
        raise UsageError(error.message, error.hint) from error
    found = await aside(claim, plan, unwanted=_give_back)
    if isinstance(found, Occupied):
        if found.ports and client is None:
            ports = " and ".join(found.ports)
            say(f"warning: another process has {ports}: no etcd member can run there")
        return None
    try:
        binary, warning = await anyio.to_thread.run_sync(fit_binary)
    except EtcdError:
        found.folder.release()
        raise
    if warning:
        say(f"warning: {warning}")
    host = found.own.endpoint.host
    if not is_loopback(host) and (why := unreachable(host, found.listen_ip)):
        say(f"warning: {why}")
    credentials, tls = meeting.settings.credentials, meeting.settings.tls
    if not is_loopback(found.listen_ip) and credentials is None and tls is None:
        say(
            f"warning: the etcd member at {found.own.endpoint} is open to everybody who reaches it; "
            "set NVRX_JOB_TOKEN to the same secret on all nodes to close it"
        )
    member = ClusterMember(
        plan,
        found.own,
        found.folder,
        await stack.enter_async_context(EtcdClient(meeting.settings)),
        MemberSettings(binary, found.listen_ip, meeting.log_file, credentials, tls),
        formed=client is not None,
        say=say,
        warn=lambda text: say(f"warning: {text}"),
    )
    return await stack.enter_async_context(member)


async def _is_ours(client: EtcdClient, meeting: Meeting) -> bool:
    """Whether what answers is the cluster of this job's nodes; what somebody else runs gets no member from us."""
    settings = meeting.settings
    names = plan_cluster(settings.parsed(), meeting.job, settings.credentials).names
    return any(member.name in names for member in await list_members(client))


async def _refuse_open_strangers(client: EtcdClient, meeting: Meeting) -> None:
    """Keep out of a cluster that nodes at these addresses formed who know another token, before it asks for one.

    Raises:
        AuthenticationError: it is such a cluster.
    """
    settings = meeting.settings
    if settings.credentials is None or not client.caller.tokens.are_not_asked_for:
        return
    endpoints = settings.parsed()
    if len(endpoints) not in SIZES:
        return
    plan = plan_cluster(endpoints, meeting.job, settings.credentials)
    urls = {member.peer_url for member in plan.members}
    for member in await list_members(client):
        if is_planned_name(member.name) and member.name not in plan.names and urls & set(member.peer_urls):
            raise AuthenticationError(
                "nodes that know another NVRX_JOB_TOKEN, or none, have formed the etcd at these addresses",
                evidence=(f"it asks for no password, or not yet; its member is called {member.name}",),
                hint="set NVRX_JOB_TOKEN to the same secret on all nodes; another job needs other addresses",
            )


async def _tell_who_is_missing(member: ClusterMember, say: Callable[[str], None]) -> None:
    count, quorum = len(member.plan.members), member.plan.quorum
    look_s = anyio.current_time() + MISSING_FIRST_S
    while True:
        await anyio.sleep_until(look_s)
        look_s += MISSING_EVERY_S
        missing = await member.missing()
        if missing:
            names = ", ".join(str(one.endpoint) for one in missing)
            say(
                f"etcd member {member.own.endpoint} is up here; waiting for {names} ({quorum} of {count} are needed)"
            )


def _names_this_host(endpoints: tuple[Endpoint, ...]) -> bool:
    return any(is_own(endpoint.host) for endpoint in endpoints)


async def resolving(look_up: Callable[[*Ts], T], *what: *Ts) -> T:
    """Look up in a thread that may be left behind: a name server can take half a minute to say nothing."""
    return await aside(look_up, *what)


def fit_binary() -> tuple[Path, str]:
    """The first etcd that may be a member of a cluster, and what to warn of.

    Raises:
        BinaryNotFoundError, UnfitVersionError: there is none; the first one says why.
    """
    unfit: UnfitVersionError | None = None
    for binary in find_binaries():
        try:
            return binary, check_version(_version_of(binary), str(binary))
        except UnfitVersionError as error:
            unfit = unfit or error
    raise unfit or AssertionError("no etcd at all is an error of its own")


def _version_of(binary: Path) -> str:
    told = subprocess.run(
        [str(binary), "--version"], capture_output=True, text=True, timeout=VERSION_LIMIT_S, check=False
    ).stdout
    found = re.search(r"etcd Version: (\S+)", told)
    return found[1] if found else told.strip()[:40]


def claim(plan: ClusterPlan) -> Claim | Occupied:
    """Take the first named address of this host that nobody else runs a member on. Blocks on name servers."""
    occupied: list[str] = []
    for own in plan.members:
        if not is_own(own.endpoint.host):
            continue
        folder = _folder_of(plan, own)
        if folder is None:
            continue
        host = "127.0.0.1" if own.endpoint.host == "localhost" else own.endpoint.host
        listen_ip = host if is_loopback(host) else own_address(host, own.endpoint.port)
        taken = _taken(listen_ip, own)
        # With data it is ours, whatever has the port: the member of an agent that was killed a moment ago.
        if folder.has_data or not taken:
            return Claim(plan, own, folder, listen_ip)
        folder.release()
        occupied += taken
    return Occupied(tuple(occupied))


def _give_back(found: Claim | Occupied) -> None:
    if isinstance(found, Claim):
        found.folder.release()


def _folder_of(plan: ClusterPlan, own: PlannedMember) -> MemberFolder | None:
    peers = tuple(member.peer_url for member in plan.members if member != own)
    try:
        owner = Owner.this(plan.job, plan.token, peers)
        return MemberFolder.take(f"{plan.token}-{own.endpoint.port}{_host_mark(own.endpoint.host)}", owner)
    except OSError as error:
        raise ServerStartError(
            "this node's etcd member has no place for its data",
            evidence=(str(error),),
            hint="remove that folder, or let another node run the member: --etcd-embedded off",
        ) from error


def _host_mark(host: str) -> str:
    return f"-{hashlib.sha256(host.encode()).hexdigest()[:6]}"


def _taken(listen_ip: str, own: PlannedMember) -> list[str]:
    """Which of a member's addresses another process has."""
    taken = []
    for port in (own.endpoint.port, own.peer_port):
        try:
            bound(listen_ip, port).close()
        except ServerStartError:
            taken.append(join_host_port(listen_ip, port))
    return taken
