"""The first calls to a server that was just started: is it ready, and who may use it?"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from nvrx_async.etcd.background import scoped
from nvrx_async.etcd.channel import OPTIONS
from nvrx_async.etcd.errors import ServerStartError
from nvrx_async.etcd.wire import grpc, messages, stubs

if TYPE_CHECKING:
    from nvrx_async.etcd.config import Credentials

_CALL_S = 5.0
_ROOT = "root"


async def wait_until_ready(endpoint: str) -> str:
    """The server's version, as soon as it answers. Cancel it when the server ends."""
    async with grpc.aio.insecure_channel(endpoint, options=OPTIONS) as channel:
        return await version_when_ready(stubs.MaintenanceStub(channel))


async def version_when_ready(maintenance: Any) -> str:
    """The server's version, as soon as it answers on this stub's channel.

    Raises:
        grpc.aio.AioRpcError: the connection broke while it was asked.
    """
    answer = await scoped(maintenance.Status(messages.StatusRequest(), wait_for_ready=True))
    return str(answer.version)


async def enable_users(endpoint: str, credentials: Credentials) -> None:
    """Make the server ask for this user, who may do everything; with old data, check the password.

    etcd wants a user `root` before it asks anybody; one that nobody named gets a password that nobody knows.

    Raises:
        ServerStartError: the data know other users, or the server went away.
    """
    async with grpc.aio.insecure_channel(endpoint, options=OPTIONS) as channel:
        await enable_users_by(stubs.AuthStub(channel), endpoint, credentials)


async def enable_users_by(auth: Any, endpoint: object, credentials: Credentials) -> None:
    """As `enable_users`, over a channel that is there; several members may do it at once."""
    try:
        if not await _is_enabled(auth, credentials):
            if credentials.user != _ROOT:
                await _create(auth, _ROOT, secrets.token_urlsafe(32))
            await _create(auth, credentials.user, credentials.password)
            await _call(auth.AuthEnable, messages.AuthEnableRequest())
    except grpc.aio.AioRpcError as error:
        raise ServerStartError(
            f"the embedded etcd at {endpoint} could not be given its user",
            evidence=(f"{error.code().name}: {error.details()}",),
            hint="all nodes need the same NVRX_JOB_TOKEN, and a data folder without the users of another job",
        ) from error


async def _is_enabled(auth: Any, credentials: Credentials) -> bool:
    request = messages.AuthenticateRequest(name=credentials.user, password=credentials.password)
    try:
        await _call(auth.Authenticate, request)
    except grpc.aio.AioRpcError as error:
        if "authentication is not enabled" in (error.details() or ""):
            return False
        raise
    return True


async def _create(auth: Any, user: str, password: str) -> None:
    try:
        await _call(auth.UserAdd, messages.AuthUserAddRequest(name=user, password=password))
    except grpc.aio.AioRpcError as error:
        if "user name already exists" not in (error.details() or ""):
            raise
        change = messages.AuthUserChangePasswordRequest(name=user, password=password)
        await _call(auth.UserChangePassword, change)
    try:
        await _call(auth.RoleAdd, messages.AuthRoleAddRequest(name=_ROOT))
    except grpc.aio.AioRpcError as error:
        if "role name already exists" not in (error.details() or ""):
            raise
    await _call(auth.UserGrantRole, messages.AuthUserGrantRoleRequest(user=user, role=_ROOT))


async def _call(rpc: Any, request: Any) -> Any:
    return await scoped(rpc(request, timeout=_CALL_S))
