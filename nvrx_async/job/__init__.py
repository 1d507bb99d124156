"""What a job is in etcd: its keys, its records and their codec, and the client that sees and steers it.

`JobClient` is imported on first use (PEP 562): it loads gRPC, which machines and ranks must not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nvrx_async.job.codec import SCHEMA, decode, encode
from nvrx_async.job.errors import InvalidNameError, JobError, RecordError, UnknownSchemaError
from nvrx_async.job.keys import AttemptKeys, checked_name, current, job_scope

if TYPE_CHECKING:
    from nvrx_async.job.client import JobClient

__all__ = [
    "SCHEMA",
    "AttemptKeys",
    "InvalidNameError",
    "JobClient",
    "JobError",
    "RecordError",
    "UnknownSchemaError",
    "checked_name",
    "current",
    "decode",
    "encode",
    "job_scope",
]


def __getattr__(name: str) -> Any:
    if name == "JobClient":
        return import_module("nvrx_async.job.client").JobClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
