"""One member of the cluster that the job's own nodes form: started, kept up, let in again without its data."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread

from nvrx_async.etcd.background import leave
from nvrx_async.etcd.bootstrap import enable_users_by, version_when_ready
from nvrx_async.etcd.config import Credentials, Tls, join_host_port
from nvrx_async.etcd.errors import (
    EtcdError,
    RequestRefusedError,
    ServerStartError,
    UnavailableError,
)
from nvrx_async.etcd.member_log import opened, tail
from nvrx_async.etcd.process import Child
from nvrx_async.etcd.roll import (
    ListedMember,
    add_learner,
    hand_over_leadership,
    list_members,
    promote,
    remove_member,
)
from nvrx_async.etcd.server import COMMON_FLAGS, environment
from nvrx_async.etcd.wire import grpc

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup

    from nvrx_async.etcd.channel import Connection
    from nvrx_async.etcd.client import EtcdClient
    from nvrx_async.etcd.cluster import ClusterPlan, PlannedMember
    from nvrx_async.etcd.member_folder import MemberFolder

_START_TRIES = 4
"""So often in a row a member that never came up is started before its agent gives up."""
_BAD_DATA_TRIES = 3
"""So often in a row a member that was up before ends at once, until its data are taken for the reason."""
_SETTLED_S = 10.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_RETRY_S = 0.5
_KNOCK_S = 1.0
_RESIGN_S = 6.0
"""Longer than the five seconds for which etcd wants all members connected before it changes their number."""
_TIMES = ("--heartbeat-interval=50", "--election-timeout=500")
"""Milliseconds, half of etcd's own: the nodes of a job are a fraction of one apart, and data lie in memory.

When the leader is lost, an election takes one to two of the time-outs, and then each lease lasts its TTL and one more.
"""
_BAD_LOGIN = "authentication failed"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a member needs beside the plan.

    `listen_ip`: etcd listens on addresses, not on names. `tls`: all three files; whoever connects needs a certificate
    of the same authority.
    """

    binary: Path
    listen_ip: str
    log_file: Path
    credentials: Credentials | None = None
    tls: Tls | None = None


class ClusterMember:
    """This node's member, up for the length of the block as well as it can be.

    It is started again when it ends, on the same data. Without data, or with data that it cannot start on, it is
    removed from the cluster, added as a learner, and gets its vote back when it has caught up: as the member it was, it
    could vote against what it had forgotten. It dies with this process. Leaving the block in order removes its data.

    `client` reaches the cluster through all of its endpoints. `formed` says that the cluster was there already.
    `say` and `warn` take lines for people.

    Raises on leaving:
        ServerStartError: it never came up, and neither did the cluster.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        own: PlannedMember,
        folder: MemberFolder,
        client: EtcdClient,
        settings: MemberSettings,
        *,
        formed: bool,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self.own = own
        self.version = ""
        self.ready = anyio.Event()
        self._folder = folder
        self._client = client
        self._settings = settings
        self._formed = formed
        self._say, self._warn = say, warn
        self._child: Child | None = None
        self._tasks: TaskGroup | None = None
        self._failures = 0
        self._ended = False
        self._resigned = False
        self._runs_on_its_data = False

    @property
    def listen_ip(self) -> str:
        """The address of this node that the member listens on."""
        return self._settings.listen_ip

    @property
    def pid(self) -> int | None:
        """Process id of etcd, None while none runs."""
        return self._child.pid if self._child is not None else None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._keep_up, name="etcd member")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._tasks is not None:
                await leave(self._tasks, kind, error, trace)
        finally:
            with anyio.CancelScope(shield=True):  # bounded: SIGKILL follows at once
                await self._stop()
                await anyio.to_thread.run_sync(self._folder.remove)

    def others_are_up(self) -> None:
        """The cluster has answered: from now on this node can do without its own member."""
        self._formed = True

    async def missing(self) -> tuple[PlannedMember, ...]:
        """The other members that do not accept connections of their peers now."""
        others = [member for member in self.plan.members if member != self.own]
        silent: list[PlannedMember] = []

        async def knock(member: PlannedMember) -> None:
            if not await _accepts(member.endpoint.host, member.peer_port):
                silent.append(member)

        async with anyio.create_task_group() as knocking:
            for member in others:
                knocking.start_soon(knock, member)
        return tuple(member for member in others if member in silent)

    async def resign(self) -> None:
        """Take the member out of the cluster, so that those who stay need a quorum of their own number only.

        Members that are gone already go first: with them counted, those who stay might be too few. Never raises, and
        takes seconds at most: a member that could not resign is one that is lost, which the others bear.
        """
        with anyio.move_on_after(_RESIGN_S):
            while True:
                try:
                    await self._resign()
                except UnavailableError:
                    continue  # etcd refuses while a member has been connected for less than five seconds
                except EtcdError as error:
                    self._warn(f"this node's etcd member leaves without notice: {error.cause}")
                return
        self._warn("this node's etcd member leaves without notice: the others did not let it go in time")

    async def _resign(self) -> None:
        gone = {member.peer_url for member in await self.missing()}
        listed = await list_members(self._client)
        mine = _listed_as(listed, self.own)
        down = [member for member in listed if gone & set(member.peer_urls)]
        if mine is None or len(listed) - len(down) == 1:
            return  # the last one: nobody stays
        for member in down:
            await remove_member(self._client, member.id)
        stays = next(member for member in listed if member not in (mine, *down))
        self._resigned = True
        await hand_over_leadership(self._client, self.own.endpoint, stays.id)
        await remove_member(self._client, mine.id)

    # Up, and up again --------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        while True:
            begun_s = anyio.current_time()
            try:
                await self._run_once()
            except (UnavailableError, RequestRefusedError) as error:
                why = f"cannot join its cluster now: {error.message}"
            else:
                if self._resigned:
                    return  # etcd ends a member that is out
                self._ended = True
                why = f"ended (status {self._child.exit_status if self._child else None})"
            settled = anyio.current_time() - begun_s > _SETTLED_S
            self._failures = 1 if settled else self._failures + 1
            await self._after_failure(why)
            await anyio.sleep(min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S))

    async def _after_failure(self, why: str) -> None:
        log = self._settings.log_file
        if not self.ready.is_set() and self._failures == _START_TRIES:
            if not await self._others_answer():
                raise ServerStartError(
                    f"this node's etcd member at {self.own.endpoint} {why}",
                    evidence=await anyio.to_thread.run_sync(tail, log),
                    hint=f"all of its log: {log}",
                )
            self._warn(
                f"this node's etcd member {why}: the job goes on without it, and bears one loss less; it is "
                f"tried again (its log: {log})"
            )
        if self._failures == 1:
            self._warn(f"this node's etcd member {why}; starting it again (its last words: {log})")
        if self._formed and self._failures % _BAD_DATA_TRIES == 0 and await self._has_data():
            self._warn("this node's etcd member does not start on its data; it goes on without them")
            await anyio.to_thread.run_sync(self._folder.wipe)

    async def _has_data(self) -> bool:
        return await anyio.to_thread.run_sync(lambda: self._folder.has_data)

    async def _others_answer(self) -> bool:
        """Whether there is a cluster without this member: then its loss is no reason to lose its node too."""
        with suppress(EtcdError):
            self._formed = self._formed or bool(await list_members(self._client))
        return self._formed

    async def _run_once(self) -> None:
        initial = await self._admission()
        log = await opened(self._settings.log_file)
        try:
            await self._stop()
            command = [str(self._settings.binary), *self._flags(), *initial]
            self._child = child = Child(command, output=log, env=environment())
            self._runs_on_its_data = True
        finally:
            os.close(log)
        async with anyio.create_task_group() as running:
            running.start_soon(self._settle)
            await child.wait()
            running.cancel_scope.cancel()

    async def _settle(self) -> None:
        """What is to be done once it answers: users, its vote, and a line that says so."""
        self.version = await self._answers()
        mine = await self._as_listed()
        if mine is not None and mine.is_learner:
            await self._promoted(mine)
        if self._settings.credentials is not None:
            await self._ask_for_users(self._settings.credentials)
        self._formed = True
        self.ready.set()
        if self._ended:
            # Whether it was seen to be up is no matter: a job runs before each node has heard of its own member.
            self._ended = False
            self._say("this node's etcd member is up again")

    async def _answers(self) -> str:
        while True:
            try:
                return await version_when_ready(self._own_connection.maintenance)
            except grpc.aio.AioRpcError:
                await anyio.sleep(_FIRST_PAUSE_S)  # it broke off: it ends, or tries again itself

    async def _ask_for_users(self, credentials: Credentials) -> None:
        while True:
            try:
                await enable_users_by(self._own_connection.auth, self.own.endpoint, credentials)
            except ServerStartError as error:
                if any(_BAD_LOGIN in line for line in error.evidence):
                    raise
            else:
                return
            await anyio.sleep(_RETRY_S)

    async def _promoted(self, mine: ListedMember) -> None:
        self._say(
            "this node's etcd member joins without data of its own; it has no vote until it has caught up"
        )
        while True:
            try:
                await promote(self._client, mine.id)
            except (RequestRefusedError, UnavailableError):
                found = await self._as_listed()
                if found is not None and not found.is_learner:
                    return  # the answer of an earlier attempt was lost
            else:
                return
            await anyio.sleep(_RETRY_S)

    async def _as_listed(self) -> ListedMember | None:
        try:
            return _listed_as(await list_members(self._client), self.own)
        except UnavailableError:
            return None

    # Let in ------------------------------------------------------------------------------------------

    async def _admission(self) -> list[str]:
        """The flags that say which cluster it belongs to; with data they count for nothing."""
        if await self._has_data():
            if self._runs_on_its_data or await self._knows_its_data():
                return _initial(self.plan.initial, "new")
            self._warn(
                "this node's etcd member has data of an earlier run of this job; it starts without them"
            )
            await anyio.to_thread.run_sync(self._folder.wipe)
        if not self._formed and self._failures == 0:
            return _initial(self.plan.initial, "new")  # nobody answered a moment ago
        try:
            listed = await list_members(self._client)
        except UnavailableError:
            if self._formed:
                raise  # it may have voted already, and has forgotten how
            return _initial(self.plan.initial, "new")
        self._formed = True
        mine = _listed_as(listed, self.own)
        if mine is not None and mine.name:
            if await _accepts(self.listen_ip, self.own.peer_port):
                raise UnavailableError(f"another process has its address {self.own.peer_url}")
            await remove_member(self._client, mine.id)
            mine = None
        if mine is None:
            await add_learner(self._client, self.own.peer_url)
            listed = await list_members(self._client)
        return _initial(self._spelled(listed), "existing")

    async def _knows_its_data(self) -> bool:
        """Whether there is a cluster that has seen this member before: data that are here are of its own then.

        Another run of the same job has the same names, token and addresses, so the same ids, and raft cannot tell the
        data of the one from those of the other: replicas would differ for good. Where no cluster answers, it may be
        about to begin anew, and what the old one knew is gone with its agents.
        """
        try:
            mine = _listed_as(await list_members(self._client), self.own)
        except UnavailableError:
            return False
        return mine is not None and mine.was_up

    def _spelled(self, listed: tuple[ListedMember, ...]) -> str:
        names = {member.peer_url: member.name for member in self.plan.members}
        return ",".join(
            f"{member.name or names.get(url, f'member-{member.id:x}')}={url}"
            for member in listed
            for url in member.peer_urls
        )

    def _flags(self) -> list[str]:
        listen, own = self._settings.listen_ip, self.own
        tls, scheme = self._settings.tls, "http" if self._settings.tls is None else "https"
        return [
            f"--name={own.name}",
            f"--data-dir={self._folder.data}",
            f"--listen-client-urls={scheme}://{join_host_port(listen, own.endpoint.port)}",
            f"--advertise-client-urls={scheme}://{own.endpoint.address}",
            f"--listen-peer-urls={scheme}://{join_host_port(listen, own.peer_port)}",
            f"--initial-advertise-peer-urls={own.peer_url}",
            *([] if tls is None else _tls_flags(tls)),
            f"--initial-cluster-token={self.plan.token}",
            # A member that was cut off or restarted asks first whether others would elect it: the leader stays.
            "--pre-vote=true",
            *_TIMES,
            *COMMON_FLAGS,
        ]

    @property
    def _own_connection(self) -> Connection:
        """To this node's member only, whichever one the client uses."""
        own = self.own.endpoint.address
        return next(one for one in self._client.caller.pool.connections if one.endpoint.address == own)

    async def _stop(self) -> None:
        if self._child is not None:
            await self._child.stop(0)
            self._child.close()
            self._child = None


def _initial(cluster: str, state: str) -> list[str]:
    return [f"--initial-cluster={cluster}", f"--initial-cluster-state={state}"]


def _tls_flags(tls: Tls) -> list[str]:
    """One certificate a node: for clients, as a client of the other members, and among them."""
    return [
        f"--trusted-ca-file={tls.ca_file}",
        f"--cert-file={tls.cert_file}",
        f"--key-file={tls.key_file}",
        "--client-cert-auth=true",
        f"--peer-trusted-ca-file={tls.ca_file}",
        f"--peer-cert-file={tls.cert_file}",
        f"--peer-key-file={tls.key_file}",
        "--peer-client-cert-auth=true",
    ]


def _listed_as(listed: tuple[ListedMember, ...], own: PlannedMember) -> ListedMember | None:
    return next((member for member in listed if own.peer_url in member.peer_urls), None)


async def _accepts(host: str, port: int) -> bool:
    with anyio.move_on_after(_KNOCK_S):
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            return False
        writer.transport.abort()
        return True
    return False
