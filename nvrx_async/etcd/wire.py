"""etcd's gRPC messages, in and out; and the one place that sets gRPC's environment before importing it.

`aetcd` brings the message classes and stubs generated from etcd's `rpc.proto`; its own client is not used.
"""

from __future__ import annotations

import os
from typing import Any

# Read when gRPC's core is loaded. The agent never forks with gRPC's threads in it, and the fork handlers
# would stop them around every process it starts. gRPC's own lines on standard error repeat what our errors
# say.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio
from aetcd.rpc import rpc_pb2 as messages
from aetcd.rpc import rpc_pb2_grpc as stubs

from nvrx_async.etcd.types import (
    Compare,
    CreatedAt,
    Deleted,
    Empty,
    Exists,
    KeyValue,
    Listing,
    ModifiedAt,
    Operation,
    Put,
    Scope,
    Txn,
)

__all__ = [
    "FUTURE_REVISION",
    "change",
    "grpc",
    "key_value",
    "lease_question",
    "listing",
    "messages",
    "range_request",
    "reads_request",
    "stubs",
    "txn_request",
    "watch_request",
]

FUTURE_REVISION = "mvcc: required revision is a future revision"
_NO_REVISION = (1 << 63) - 1
_ANY_KEY = b"/nvrx/lease"

_DELETE = 1  # mvccpb.Event.EventType


def range_bounds(scope: Scope) -> tuple[bytes, bytes]:
    """`key` and `range_end` as etcd wants them: a prefix ends before the next key that lacks it."""
    key = scope.key.encode()
    if not scope.prefix:
        return key, b""
    stem = key.rstrip(b"\xff")
    if not stem:
        return key or b"\0", b"\0"
    return key, stem[:-1] + bytes([stem[-1] + 1])


def range_request(scope: Scope, *, revision: int = 0) -> Any:
    """A linearizable read, or with `revision` the past as it stood then."""
    key, end = range_bounds(scope)
    return messages.RangeRequest(key=key, range_end=end, revision=revision, limit=1 if scope.first else 0)


def newest_before_request(scope: Scope, create_revision: int) -> Any:
    """A read of the one key of the scope that was created last before this revision."""
    key, end = range_bounds(scope)
    return messages.RangeRequest(
        key=key,
        range_end=end,
        max_create_revision=create_revision - 1,
        limit=1,
        sort_target=messages.RangeRequest.CREATE,
        sort_order=messages.RangeRequest.DESCEND,
    )


def reads_request(scopes: tuple[Scope, ...], *, revision: int = 0) -> Any:
    """One transaction that reads all scopes at one revision."""
    return messages.TxnRequest(
        success=[
            messages.RequestOp(request_range=range_request(scope, revision=revision)) for scope in scopes
        ]
    )


def txn_request(txn: Txn) -> Any:
    """The transaction as a message.

    One that only compares gets a read of its first key: etcd would answer it from a member that may be
    behind.
    """
    operations = [_operation(operation) for operation in txn.then]
    if not operations and txn.when:
        read = messages.RangeRequest(key=txn.when[0].key.encode(), count_only=True)
        operations = [messages.RequestOp(request_range=read)]
    return messages.TxnRequest(
        compare=[_compare(condition) for condition in txn.when],
        success=operations,
        failure=[] if txn.then else operations,
    )


def lease_question(lease_id: int) -> Any:
    """A transaction that never takes place: for lack of the lease, or, where it lives, of the revision it reads."""
    put = messages.PutRequest(key=_ANY_KEY, lease=lease_id)
    read = messages.RangeRequest(key=_ANY_KEY, revision=_NO_REVISION)
    return messages.TxnRequest(
        success=[messages.RequestOp(request_put=put), messages.RequestOp(request_range=read)]
    )


def watch_request(scope: Scope, *, watch_id: int, start_revision: int) -> Any:
    """A watch under an id of our choice; large batches come in fragments."""
    key, end = range_bounds(scope)
    return messages.WatchRequest(
        create_request=messages.WatchCreateRequest(
            key=key, range_end=end, start_revision=start_revision, watch_id=watch_id, fragment=True
        )
    )


def listing(scope: Scope, answer: Any, revision: int) -> Listing:
    """What a `RangeResponse` holds."""
    return Listing(scope, tuple(key_value(kv) for kv in answer.kvs), revision)


def key_value(kv: Any) -> KeyValue:
    """One `mvccpb.KeyValue`."""
    return KeyValue(
        key=kv.key.decode(errors="surrogateescape"),
        value=bytes(kv.value),
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        version=kv.version,
        lease=kv.lease,
    )


def change(event: Any) -> KeyValue | Deleted:
    """One `mvccpb.Event`."""
    if event.type == _DELETE:
        return Deleted(event.kv.key.decode(errors="surrogateescape"), event.kv.mod_revision)
    return key_value(event.kv)


def _compare(condition: Compare) -> Any:
    compare = messages.Compare
    key = condition.key.encode()
    match condition:
        case ModifiedAt(revision=revision):
            return compare(result=compare.EQUAL, target=compare.MOD, key=key, mod_revision=revision)
        case CreatedAt(revision=revision):
            return compare(result=compare.EQUAL, target=compare.CREATE, key=key, create_revision=revision)
        case Exists():
            return compare(result=compare.GREATER, target=compare.VERSION, key=key, version=0)
        case Empty(scope=scope):
            # Each key of a range must fulfil the condition, and a range without keys is judged as one absent key.
            start, end = range_bounds(scope)
            return compare(
                result=compare.EQUAL, target=compare.CREATE, key=start, range_end=end, create_revision=0
            )


def _operation(operation: Operation) -> Any:
    if isinstance(operation, Put):
        put = messages.PutRequest(key=operation.key.encode(), value=operation.value, lease=operation.lease)
        return messages.RequestOp(request_put=put)
    key, end = range_bounds(operation.scope)
    return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=key, range_end=end))
