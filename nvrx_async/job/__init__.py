"""What a job is in etcd: its keys, its records and their codec."""

from nvrx_async.job.codec import SCHEMA, decode, encode
from nvrx_async.job.errors import InvalidNameError, JobError, RecordError, UnknownSchemaError
from nvrx_async.job.keys import AttemptKeys, checked_name, current, job_scope

__all__ = [
    "SCHEMA",
    "AttemptKeys",
    "InvalidNameError",
    "JobError",
    "RecordError",
    "UnknownSchemaError",
    "checked_name",
    "current",
    "decode",
    "encode",
    "job_scope",
]
