"""The members of a cluster as etcd itself lists them, and how one is added, promoted and removed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvrx_async.etcd.background import scoped
from nvrx_async.etcd.errors import RequestRefusedError
from nvrx_async.etcd.wire import grpc, messages

if TYPE_CHECKING:
    from nvrx_async.etcd.client import EtcdClient
    from nvrx_async.etcd.config import Endpoint


_NOT_LISTED = "etcdserver: member not found"


@dataclass(frozen=True, slots=True)
class ListedMember:
    """One member. `name` is empty until it has started for the first time, unless the cluster began with it.

    `was_up`: it has told this cluster where clients find it, as each does at its first start.
    """

    id: int
    name: str
    peer_urls: tuple[str, ...]
    is_learner: bool
    was_up: bool


async def list_members(client: EtcdClient) -> tuple[ListedMember, ...]:
    """All members, as the answering one knows them; raises as the client's calls do."""
    answer = await client.caller.repeat(lambda at: at.cluster.MemberList, messages.MemberListRequest())
    return tuple(
        ListedMember(
            found.ID, found.name, tuple(found.peerURLs), found.isLearner, was_up=bool(found.clientURLs)
        )
        for found in answer.members
    )


async def add_learner(client: EtcdClient, peer_url: str) -> None:
    """Add a member that has no vote until it is promoted.

    Raises:
        RequestRefusedError: etcd will not now: another learner is there, or members are not connected.
    """
    request = messages.MemberAddRequest(peerURLs=[peer_url], isLearner=True)
    await client.caller.repeat(lambda at: at.cluster.MemberAdd, request)


async def promote(client: EtcdClient, member_id: int) -> None:
    """Give a learner its vote.

    Raises:
        RequestRefusedError: it has not caught up yet, or is no learner.
    """
    request = messages.MemberPromoteRequest(ID=member_id)
    await client.caller.repeat(lambda at: at.cluster.MemberPromote, request)


async def remove_member(client: EtcdClient, member_id: int) -> None:
    """Take a member out of the cluster; one that is out already is no error.

    Raises:
        RequestRefusedError: the others would lose their quorum.
    """
    request = messages.MemberRemoveRequest(ID=member_id)
    try:
        await client.caller.repeat(lambda at: at.cluster.MemberRemove, request)
    except RequestRefusedError as error:
        if not any(_NOT_LISTED in line for line in error.evidence):
            raise


async def hand_over_leadership(client: EtcdClient, endpoint: Endpoint, to: int) -> None:
    """Let the member at `endpoint` give the lead to another, at once instead of after an election.

    A member that does not lead, or cannot, changes nothing: an election follows when it has gone.
    """
    request = messages.MoveLeaderRequest(targetID=to)
    caller = client.caller
    for connection in caller.pool.connections:
        if connection.endpoint.address == endpoint.address:
            with suppress(grpc.aio.AioRpcError):
                metadata = await caller.tokens.metadata(connection)
                call = connection.maintenance.MoveLeader(request, timeout=caller.timeout_s, metadata=metadata)
                await scoped(call)
