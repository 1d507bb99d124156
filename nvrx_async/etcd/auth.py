"""The token of a user, fetched when it is needed and again when etcd no longer knows it.

etcd's simple tokens live in the members' memory: a restart, a change of users, or five idle minutes end them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import anyio

from nvrx_async.etcd.background import scoped
from nvrx_async.etcd.wire import grpc, messages

if TYPE_CHECKING:
    from nvrx_async.etcd.channel import Connection
    from nvrx_async.etcd.config import Credentials

Metadata: TypeAlias = tuple[tuple[str, str], ...]

_HAS_LEADER: Metadata = (("hasleader", "true"),)
"""etcd then refuses at once what a member without a leader could not do, and ends such a member's streams."""


class Tokens:
    """The one current token. Many calls may find it stale at once: only the first fetches a new one."""

    def __init__(self, credentials: Credentials | None, timeout_s: float) -> None:
        self.credentials = credentials
        self._timeout_s = timeout_s
        self._token: str | None = None
        self._fetching = anyio.Lock()

    @property
    def are_not_asked_for(self) -> bool:
        """Whether etcd, when it was told the password last, asked nobody for one."""
        return self._token == ""

    async def metadata(self, connection: Connection) -> Metadata:
        """What a call carries.

        Raises:
            grpc.aio.AioRpcError: the token could not be fetched through this connection.
        """
        if self.credentials is None:
            return _HAS_LEADER
        async with self._fetching:
            if self._token is None:
                self._token = await self._fetch(connection, self.credentials)
        return (*_HAS_LEADER, ("token", self._token)) if self._token else _HAS_LEADER

    def forget(self, metadata: Metadata) -> None:
        """The token in `metadata` was refused; a newer one is kept."""
        if dict(metadata).get("token", "") == self._token:
            self._token = None

    async def _fetch(self, connection: Connection, credentials: Credentials) -> str:
        request = messages.AuthenticateRequest(name=credentials.user, password=credentials.password)
        try:
            call = connection.auth.Authenticate(request, timeout=self._timeout_s, metadata=_HAS_LEADER)
            answer = await scoped(call)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return ""  # an etcd that asks nobody lets us in without a token
            raise
        return str(answer.token)
