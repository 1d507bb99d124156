"""One call over several endpoints: deadlines, fail-over, tokens, repeating only what is safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from nvrx_async.etcd.background import scoped
from nvrx_async.etcd.channel import Connection, Pool
from nvrx_async.etcd.errors import (
    EtcdError,
    ForeignClusterError,
    OutcomeUnknownError,
    PermissionDeniedError,
    UnavailableError,
)
from nvrx_async.etcd.failures import Failure, Verdict, classify, no_token
from nvrx_async.etcd.types import Scope
from nvrx_async.etcd.wire import grpc, range_request

if TYPE_CHECKING:
    from nvrx_async.etcd.auth import Metadata, Tokens
    from nvrx_async.etcd.identity import Identity

Rpc: TypeAlias = Callable[[Connection], Any]

RETRY_PAUSE_S = 0.1
"""Between two rounds over all endpoints, while the call's time lasts."""

_MAX_NEW_TOKENS = 3
_VERIFY_SCOPE = Scope("/nvrx/")
"""Read to learn a cluster's revision. Any key would do; this one a user of ours may read."""


class _AttemptError(Exception):
    """One attempt failed; the loop decides what that means."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Caller:
    """Makes calls for the client, its sessions and its feeds."""

    def __init__(self, pool: Pool, tokens: Tokens, identity: Identity, timeout_s: float) -> None:
        self.pool = pool
        self.tokens = tokens
        self.identity = identity
        self.timeout_s = timeout_s

    async def repeat(self, rpc: Rpc, request: Any, *, linearizable: bool = False) -> Any:
        """A call that may be executed twice without harm.

        Every endpoint gets at least one attempt, and the call lasts at least `timeout_s` before it fails.

        Raises:
            UnavailableError: no endpoint answered in time.
            ForeignClusterError: only endpoints of another cluster, or with lost data, answered.
            EtcdError: etcd refused it.
        """
        return await self._over_endpoints(
            lambda connection: self._attempt(connection, rpc, request, linearizable=linearizable),
            repeatable=True,
        )

    async def once(self, rpc: Rpc, request: Any) -> Any:
        """A linearizable call, repeated only where it certainly was not executed.

        Raises:
            OutcomeUnknownError: sent, and the answer is lost.
            UnavailableError, ForeignClusterError, EtcdError: as `repeat`; it took no effect.
        """

        async def attempt(connection: Connection) -> Any:
            await self.verify(connection)
            return await self._attempt(connection, rpc, request, linearizable=True)

        return await self._over_endpoints(attempt, repeatable=False)

    async def verify(self, connection: Connection) -> None:
        """Make sure that a connection is up and leads to our cluster with its data.

        Without this a write could go to an etcd that was restarted empty a moment ago, and a watch would wait
        there for a revision that will not come for days.
        """
        if connection.verified and connection.is_ready():
            return
        try:
            await self._attempt(
                connection, lambda at: at.kv.Range, range_request(_VERIFY_SCOPE), linearizable=True
            )
        except _AttemptError as failed:
            if failed.failure.verdict in {Verdict.UNKNOWN, Verdict.NOT_EXECUTED}:
                # The read before the write failed, so the write was not sent.
                raise _AttemptError(Failure(Verdict.NOT_EXECUTED, failed.failure.detail)) from failed
            if not _is_denied(failed.failure):
                raise
        connection.verified = True

    async def prepared(self, connection: Connection) -> Metadata:
        """Verify a connection before a stream is opened on it, and say what the stream's call must carry.

        Raises:
            UnavailableError: not usable now; the pool has moved on.
            EtcdError: etcd refuses this user.
        """
        try:
            await self.verify(connection)
            return await self.tokens.metadata(connection)
        except _AttemptError as failed:
            self.pool.failed(connection)
            if failed.failure.error is not None:
                raise failed.failure.error from failed
            raise UnavailableError("etcd is not reachable", evidence=(failed.failure.detail,)) from failed
        except grpc.aio.AioRpcError as error:
            self.pool.failed(connection)
            failure = classify(error, connection.endpoint)
            raise failure.error or UnavailableError(
                "etcd is not reachable", evidence=(failure.detail,)
            ) from error

    async def _attempt(self, connection: Connection, rpc: Rpc, request: Any, *, linearizable: bool) -> Any:
        try:
            metadata = await self.tokens.metadata(connection)
        except grpc.aio.AioRpcError as error:
            failure = classify(error, connection.endpoint)
            verdict = Verdict.REFUSED if failure.error else Verdict.NOT_EXECUTED
            raise _AttemptError(Failure(verdict, failure.detail, failure.error)) from error
        known = self.identity.revision if linearizable else 0
        try:
            answer = await scoped(rpc(connection)(request, timeout=self.timeout_s, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            raise _AttemptError(self._read(error, connection, metadata)) from error
        try:
            self.identity.admit(answer.header, connection.endpoint, at_least=known)
        except ForeignClusterError as error:
            raise _AttemptError(Failure(Verdict.REFUSED, error.cause, error)) from error
        connection.verified = connection.verified or linearizable
        return answer

    def _read(self, error: Any, connection: Connection, metadata: Metadata) -> Failure:
        failure = classify(error, connection.endpoint)
        if failure.verdict is not Verdict.TOKEN:
            return failure
        if self.tokens.credentials is None:
            return Failure(Verdict.REFUSED, failure.detail, no_token(failure.detail))
        self.tokens.forget(metadata)
        return failure

    async def _over_endpoints(self, attempt: Callable[[Connection], Any], *, repeatable: bool) -> Any:
        """Try `current` until an answer, a refusal, or until all had their turn and the time is over."""
        ends_at = anyio.current_time() + self.timeout_s
        failures: dict[Connection, Failure] = {}
        new_tokens = 0
        while True:
            connection = self.pool.current
            try:
                return await attempt(connection)
            except _AttemptError as failed:
                failure = failed.failure
            if failure.verdict is Verdict.TOKEN and new_tokens < _MAX_NEW_TOKENS:
                new_tokens += 1
                continue
            if failure.error is not None and not isinstance(failure.error, ForeignClusterError):
                raise failure.error
            self.pool.failed(connection)
            if failure.verdict is Verdict.UNKNOWN and not repeatable:
                raise _outcome_unknown(failure)
            failures[connection] = failure
            if len(failures) == len(self.pool.connections):
                if anyio.current_time() >= ends_at or _all_foreign(failures):
                    raise _no_answer(failures)
                await anyio.sleep(RETRY_PAUSE_S)


def _is_denied(failure: Failure) -> bool:
    return isinstance(failure.error, PermissionDeniedError)


def _all_foreign(failures: dict[Connection, Failure]) -> bool:
    return all(isinstance(failure.error, ForeignClusterError) for failure in failures.values())


def _outcome_unknown(failure: Failure) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the answer to a transaction was lost, it may have taken effect",
        evidence=(failure.detail,),
        hint="read its keys again before deciding",
    )


def _no_answer(failures: dict[Connection, Failure]) -> EtcdError:
    for failure in failures.values():
        if failure.error is not None and _all_foreign(failures):
            return failure.error
    return UnavailableError(
        "no etcd endpoint answered",
        evidence=tuple(failure.detail for failure in failures.values()),
        hint="is etcd running, and reachable from this machine?",
    )
