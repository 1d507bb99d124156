"""Where etcd is: as the command line says, as the environment says, or as jobs on this machine do."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from nvrx_async.etcd import AuthenticationError, EtcdClient, UnavailableError
from nvrx_async.etcd.config import Credentials, EtcdConfig, Tls
from nvrx_async.job.client import JobClient
from nvrx_async.job.errors import NoSuchJobError
from nvrx_async.job.names import nearest
from nvrx_async.job.reached import Ask
from nvrx_async.probe.client import ask
from nvrx_async.probe.errors import ProbeError, UntrustedError
from nvrx_launcher.ctl.errors import NoEtcdError, SeveralJobsError
from nvrx_launcher.etcd_password import credentials_of

ENDPOINTS_VARIABLE = "NVRX_ETCD_ENDPOINTS"
CALL_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """What a person said of etcd; empty where nothing was."""

    endpoints: tuple[str, ...] = ()
    cacert: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = ""
    job_token: str = ""

    @property
    def named(self) -> bool:
        """Somebody said where etcd is."""
        return bool(self.endpoints)


@dataclass(frozen=True, slots=True)
class Place:
    """An etcd, and the jobs of this machine that use it, where that is how it was found."""

    endpoints: tuple[str, ...]
    run_ids: tuple[str, ...] = ()


async def places(options: EtcdOptions) -> tuple[Place, ...]:
    """All etcds to look into: the one that was named, else those of this user's jobs on this machine.

    Raises:
        NoEtcdError: there is none.
    """
    if options.endpoints:
        return (Place(options.endpoints),)
    from nvrx_launcher.known_agents import known_agents  # noqa: PLC0415 - only where nobody named an etcd

    agents = await anyio.to_thread.run_sync(known_agents)
    found: dict[tuple[str, ...], set[str]] = {}
    for agent in agents:
        found.setdefault(agent.endpoints, set()).add(agent.run_id)
    if not found:
        raise NoEtcdError(
            "it is not known where etcd is, and no job of this user runs on this machine",
            f"name it: --etcd host:2379, or {ENDPOINTS_VARIABLE}",
        )
    return tuple(Place(endpoints, tuple(sorted(run_ids))) for endpoints, run_ids in sorted(found.items()))


async def place_of(options: EtcdOptions, run_id: str) -> Place:
    """The etcd of one job.

    Raises:
        NoEtcdError: there is none to look into.
        NoSuchJobError: jobs run on this machine, and this is none of them.
        SeveralJobsError: more than one of this name do, in several etcds.
    """
    found = await places(options)
    if len(found) == 1:
        return found[0]
    known = [name for place in found for name in place.run_ids]
    own = [place for place in found if run_id in place.run_ids]
    if not own:
        raise NoSuchJobError(run_id, nearest(run_id, known), len(known))
    others = [place for place in own[1:] if not _addresses(place) & _addresses(own[0])]
    if others:
        raise SeveralJobsError(run_id, [",".join(place.endpoints) for place in (own[0], *others)])
    return own[0]


def _addresses(place: Place) -> set[str]:
    """Agents may spell one etcd in different ways."""
    plain = (address.rpartition("//")[2] for address in place.endpoints)
    return {
        f"127.0.0.1{one.removeprefix('localhost')}" if one.startswith("localhost:") else one for one in plain
    }


async def is_of_job(options: EtcdOptions, run_id: str) -> bool:
    """Whether the etcd to look into is this job's for certain: somebody named it, or an agent of the job uses it."""
    if options.named:
        return True
    try:
        return any(run_id in place.run_ids for place in await places(options))
    except NoEtcdError:  # the agent that was found before has ended meanwhile
        return False


@asynccontextmanager
async def connected(options: EtcdOptions, endpoints: tuple[str, ...]) -> AsyncIterator[EtcdClient]:
    """A client. A password that only the job token gave is left out where etcd asks for none, as agents do.

    Raises:
        EtcdError: etcd cannot be reached, or does not let us in.
    """
    tls = None
    if options.cacert or options.cert:
        ca, cert, key = (Path(text) if text else None for text in (options.cacert, options.cert, options.key))
        tls = Tls(ca, cert, key)
    settings = EtcdConfig(endpoints, tls, _credentials(options), call_timeout_s=CALL_TIMEOUT_S)
    if settings.credentials is not None and not options.user:
        async with EtcdClient(settings) as client:
            try:
                await client.status()
            except AuthenticationError:
                settings = replace(settings, credentials=None)
            else:
                yield client
                return
    async with EtcdClient(settings) as client:
        yield client


@asynccontextmanager
async def job_client(options: EtcdOptions, run_id: str) -> AsyncIterator[JobClient]:
    """A client of one job, which reaches its agents too."""
    place = await place_of(options, run_id)
    question = asking(options.job_token or None)
    async with connected(options, place.endpoints) as client:
        yield JobClient(client, run_id, ask=question, silence=(ProbeError, OSError), away=_warn)


def asking(token: str | None) -> Ask:
    """How agents are asked. That they do not accept the token is said once: whoever waits would wait for nothing."""
    told: list[str] = []

    async def question(
        address: str, kind: str, payload: Mapping[str, Any], timeout_s: float
    ) -> Mapping[str, Any]:
        try:
            return await ask(address, kind, payload, timeout_s, token=token)
        except UntrustedError as error:
            if not told:
                told.append(address)
                sys.stderr.write(f"warning: the agent at {error}\n")
                sys.stderr.flush()
            raise

    return question


def _warn(error: UnavailableError) -> None:
    """Below the picture on a terminal, and in no pipe."""
    sys.stderr.write(f"warning: {error.cause}; asked again until it does\n")
    sys.stderr.flush()


def _credentials(options: EtcdOptions) -> Credentials | None:
    """As agents have them (`nvrx_launcher.reach`): what a person gave, else what follows from the job token."""
    if options.user:
        return Credentials(options.user, options.password)
    return credentials_of(options.job_token) if options.job_token else None


def options_from(environment: Mapping[str, str], given: Mapping[str, str]) -> EtcdOptions:
    """Command line before environment; secrets come from the environment or a file only."""
    text = given.get("etcd") or environment.get(ENDPOINTS_VARIABLE, "")
    parts = (
        [text] if "@" in text else text.split(",")
    )  # a password may hold a comma: it must not be taken apart
    return EtcdOptions(
        endpoints=tuple(part.strip() for part in parts if part.strip()),
        cacert=given.get("etcd_cacert") or environment.get("NVRX_ETCD_CACERT", ""),
        cert=given.get("etcd_cert") or environment.get("NVRX_ETCD_CERT", ""),
        key=given.get("etcd_key") or environment.get("NVRX_ETCD_KEY", ""),
        user=given.get("etcd_user") or environment.get("NVRX_ETCD_USER", ""),
        password=environment.get("NVRX_ETCD_PASSWORD", ""),
        job_token=environment.get("NVRX_JOB_TOKEN", ""),
    )
