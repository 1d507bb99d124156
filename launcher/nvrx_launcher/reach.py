"""How this agent reaches etcd: a server that is there, or one that it starts itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from nvrx_async.etcd import (
    AddressInUseError,
    AuthenticationError,
    ClusterMember,
    Credentials,
    EmbeddedServer,
    EtcdClient,
    Tls,
    TlsError,
    UnavailableError,
    is_loopback,
    parse_endpoint,
)
from nvrx_async.etcd import EtcdConfig as ClientConfig
from nvrx_launcher.addresses import is_own, own_address
from nvrx_launcher.cluster import Meeting, reach_several, resolving
from nvrx_launcher.config import EmbeddedEtcd, EtcdConfig
from nvrx_launcher.errors import NotReadyError
from nvrx_launcher.etcd_password import credentials_of
from nvrx_launcher.left_data import remove_left_data

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FIRST_LOOK_S = 1.0
STARTING_S = 10.0
"""How long an etcd that another agent of this host may be starting is waited for."""
WAIT_S = 30.0
"""How long an etcd that is not there yet is waited for at most: another node may be about to start it."""
WHO_MAY_ENTER = (
    "an etcd that the job's nodes started wants the same NVRX_JOB_TOKEN on all; another one --etcd-user NAME"
)


@dataclass(frozen=True, slots=True)
class Reached:
    """etcd as this agent uses it. `server` is set where this agent runs it, `member` where it runs one of several.

    `address` is this node's own.
    """

    client: EtcdClient
    server: EmbeddedServer | None
    address: str
    where: str
    member: ClusterMember | None = None


@asynccontextmanager
async def reach(
    config: EtcdConfig,
    *,
    local_address: str | None,
    job_token: str | None,
    log_file: Path,
    say: Callable[[str], None],
    wait_s: float = WAIT_S,
    job: str = "",
    cluster_wait_s: float = WAIT_S,
) -> AsyncIterator[Reached]:
    """Connect, starting a server where the configuration asks for one. Waits for etcd up to `wait_s`.

    A cluster that the nodes of `job` form is waited for up to `cluster_wait_s`: its nodes may come one by one.

    Raises:
        EtcdError: nothing answers, or the server does not start; the error names what was tried.
        NotReadyError: no endpoint tells at which address others reach this host.
    """
    async with AsyncExitStack() as stack:
        server: EmbeddedServer | None = None
        member: ClusterMember | None = None
        credentials = _credentials(config, job_token)
        await remove_left_data(_settings(config, credentials) if config.endpoints else None, job, say)
        if config.embedded is EmbeddedEtcd.PRIVATE:
            server = await stack.enter_async_context(EmbeddedServer(log_file=log_file))
            client = await stack.enter_async_context(EtcdClient(ClientConfig((server.endpoint,))))
            await client.first_contact(wait_s)
        elif len(config.endpoints) > 1:
            settings, optional = _settings(config, credentials), config.user is None
            files = settings.tls
            may_start = config.embedded is EmbeddedEtcd.AUTO and (files is None or files.serves)
            member, client = await reach_several(
                stack,
                Meeting(settings, job, log_file, may_start=may_start),
                lambda timeout_s: _connected(stack, settings, timeout_s, optional=optional),
                look_s=FIRST_LOOK_S,
                wait_s=cluster_wait_s if may_start else wait_s,
                say=say,
            )
        else:
            server, client = await _find_or_start(stack, config, credentials, log_file, say, wait_s)
        address = local_address or await _address(config, server, member)
        yield Reached(client, server, address, _where(config, server, member), member)


async def _find_or_start(
    stack: AsyncExitStack,
    config: EtcdConfig,
    credentials: Credentials | None,
    log_file: Path,
    say: Callable[[str], None],
    wait_s: float,
) -> tuple[EmbeddedServer | None, EtcdClient]:
    settings = _settings(config, credentials)
    try:
        return None, await _connected(stack, settings, FIRST_LOOK_S, optional=config.user is None)
    except TlsError:
        raise
    except UnavailableError as error:
        server = None
        if await _may_start(config):
            server = await _start(stack, config, credentials, log_file, say)
        if server is None:
            say(f"waiting up to {wait_s:g} s for etcd: {error.cause}")
    return server, await _connected(stack, settings, wait_s, optional=config.user is None)


async def _connected(
    stack: AsyncExitStack, settings: ClientConfig, timeout_s: float, *, optional: bool
) -> EtcdClient:
    """A client after its first contact. A password that only the job token gave is left out if nobody asks."""
    client = await stack.enter_async_context(EtcdClient(settings))
    try:
        await client.first_contact(timeout_s)
    except AuthenticationError as error:
        if not optional:
            raise
        if settings.credentials is None:
            raise AuthenticationError(error.cause, evidence=error.evidence, hint=WHO_MAY_ENTER) from error
        try:
            return await _connected(stack, replace(settings, credentials=None), timeout_s, optional=False)
        except AuthenticationError:
            cause = "etcd does not accept the password that follows from this node's NVRX_JOB_TOKEN"
            raise AuthenticationError(cause, evidence=error.evidence, hint=WHO_MAY_ENTER) from error
    return client


async def _start(
    stack: AsyncExitStack,
    config: EtcdConfig,
    credentials: Credentials | None,
    log_file: Path,
    say: Callable[[str], None],
) -> EmbeddedServer | None:
    """Start the server that the endpoint names; None when another agent of this host was faster."""
    endpoint = parse_endpoint(config.endpoints[0])
    host = "127.0.0.1" if endpoint.host == "localhost" else endpoint.host
    if not is_loopback(host):
        host = await resolving(own_address, endpoint.host, endpoint.port)
    server = EmbeddedServer(host, endpoint.port, credentials=credentials, log_file=log_file)
    try:
        await stack.enter_async_context(server)
    except AddressInUseError:
        if not await _answers(config, credentials):
            raise
        return None
    if not is_loopback(host) and credentials is None:
        say(
            f"warning: the etcd at {server.endpoint} is open to everybody who reaches it; "
            "set NVRX_JOB_TOKEN to the same secret on all nodes to close it"
        )
    return server


async def _answers(config: EtcdConfig, credentials: Credentials | None) -> bool:
    async with AsyncExitStack() as stack:
        settings = _settings(config, credentials)
        try:
            await _connected(stack, settings, STARTING_S, optional=config.user is None)
        except UnavailableError:
            return False
    return True


def _settings(config: EtcdConfig, credentials: Credentials | None) -> ClientConfig:
    files = config.tls
    tls = Tls(files.ca_file, files.cert_file, files.key_file) if files is not None else None
    return ClientConfig(config.endpoints, tls, credentials)


async def _may_start(config: EtcdConfig) -> bool:
    """Whether nobody else can be meant: one endpoint, plain, and it names this host."""
    if config.embedded is not EmbeddedEtcd.AUTO or config.tls is not None:
        return False
    return await resolving(is_own, parse_endpoint(config.endpoints[0]).host)


def _credentials(config: EtcdConfig, job_token: str | None) -> Credentials | None:
    """What the person gave, else what follows from the job token: then all agents know the same password."""
    if config.user is not None:
        return Credentials(config.user, config.password or "")
    return credentials_of(job_token) if job_token else None


async def _address(
    config: EtcdConfig, server: EmbeddedServer | None, member: ClusterMember | None = None
) -> str:
    if config.embedded is EmbeddedEtcd.PRIVATE:
        return "127.0.0.1"
    if member is not None:
        return member.listen_ip
    if server is not None:
        return server.host
    failures = []
    for endpoint in map(parse_endpoint, config.endpoints):
        try:
            return await resolving(own_address, endpoint.host, endpoint.port)
        except OSError as error:  # one member of a cluster may be gone, its name too
            failures.append(f"{endpoint.host}: {error.strerror or error}")
    raise NotReadyError(
        f"this host's own address is not known, no route leads to etcd ({'; '.join(failures)})",
        "name it: --local-addr ADDRESS or --interface NAME",
    )


def _where(config: EtcdConfig, server: EmbeddedServer | None, member: ClusterMember | None) -> str:
    if member is not None:
        return f"etcd of {len(config.endpoints)} members on this job's nodes, {member.own.endpoint} here"
    if server is not None:
        return f"etcd {server.version} started here at {server.endpoint}"
    return f"etcd at {', '.join(config.endpoints)}"
