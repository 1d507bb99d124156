"""What a failed call means: did it take effect, may it be repeated, is there something to repair first?

The texts are etcd's (`api/v3rpc/rpctypes/error.go`, the same from 3.4 to 3.6); etcd gives several meanings
one gRPC code, so the text decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from nvrx_async.etcd.errors import (
    AuthenticationError,
    EtcdError,
    LeaseNotFoundError,
    NoSpaceError,
    PermissionDeniedError,
    RequestRefusedError,
    TxnTooLargeError,
)
from nvrx_async.etcd.wire import grpc


class Verdict(Enum):
    """What is known of a call that brought no answer."""

    NOT_EXECUTED = "it took no effect here, another endpoint or a later attempt may do it"
    UNKNOWN = "the answer is lost: it may have taken effect"
    TOKEN = "the token is no longer known: get a new one and repeat"  # noqa: S105 - no secret
    REFUSED = "etcd will not do it, here or elsewhere"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt. `error` is set where the verdict is REFUSED."""

    verdict: Verdict
    detail: str
    error: EtcdError | None = None


_NEVER_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_BEFORE_EXECUTION = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: rpc not supported for learner",
    "etcdserver: not capable",
)
_TOKEN = (
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: revision of auth store is old",
)
_HTTP = "Received http2 header with status"
_HTTP_HINT = "name a client port of etcd; what stands before it, such as a proxy, must let gRPC through"
_BAD_LOGIN = ("etcdserver: authentication failed", "etcdserver: user name not found")

_NO_SPACE_HINT = (
    "make room: etcdctl compaction REVISION (the one of: etcdctl endpoint status -w json); etcdctl defrag; "
    "etcdctl alarm disarm (or start etcd with a larger --quota-backend-bytes)"
)


def classify(error: Any, endpoint: object) -> Failure:
    """Read a `grpc.aio.AioRpcError` of a call to `endpoint`."""
    code, text = error.code(), error.details() or ""
    detail = f"{endpoint}: {code.name}: {text}"
    if text.startswith((*_NEVER_SENT, *_BEFORE_EXECUTION)):
        return Failure(Verdict.NOT_EXECUTED, detail)
    if text.startswith(_TOKEN):
        return Failure(Verdict.TOKEN, detail)
    refusal = _refusal(code, text, detail)
    if refusal is None:
        return Failure(Verdict.UNKNOWN, detail)
    return Failure(Verdict.REFUSED, detail, refusal)


def no_token(detail: str) -> AuthenticationError:
    """A user is wanted by etcd, and none was configured."""
    return AuthenticationError(
        "etcd asks for a user and a password, none was given",
        evidence=(detail,),
        hint="give the job's credentials",
    )


def _refusal(code: Any, text: str, detail: str) -> EtcdError | None:
    evidence = (detail,)
    refusal: EtcdError | None = None
    if text.startswith(_BAD_LOGIN):
        hint = "check the job's credentials"
        refusal = AuthenticationError(
            "etcd does not accept this user and password", evidence=evidence, hint=hint
        )
    elif text.startswith("etcdserver: requested lease not found"):
        refusal = LeaseNotFoundError("the lease is over", evidence=evidence)
    elif text.startswith("etcdserver: too many operations"):
        refusal = TxnTooLargeError("etcd takes fewer operations in one transaction", evidence=evidence)
    elif "database space exceeded" in text:
        refusal = NoSpaceError("etcd's database is full (NOSPACE)", evidence=evidence, hint=_NO_SPACE_HINT)
    elif text.startswith(_HTTP) and code in {*_FINAL, grpc.StatusCode.PERMISSION_DENIED}:
        refusal = RequestRefusedError("what answers there is no etcd", evidence=evidence, hint=_HTTP_HINT)
    elif code is grpc.StatusCode.PERMISSION_DENIED:
        hint = "grant it: etcdctl role grant-permission ROLE --prefix readwrite /nvrx/"
        refusal = PermissionDeniedError(
            "the etcd user may not touch these keys", evidence=evidence, hint=hint
        )
    elif code in _FINAL:
        refusal = RequestRefusedError("etcd refused the request", evidence=evidence)
    return refusal


_FINAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
