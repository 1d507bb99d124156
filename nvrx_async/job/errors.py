"""Errors of the job room."""

from __future__ import annotations


class JobError(Exception):
    """Base of this room's errors."""


class InvalidNameError(JobError):
    """A run id or node id that can be no part of a key and of a file name."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(
            f"{what} {name!r} cannot be used: 1 to 128 letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit"
        )
        self.what = what
        self.name = name


class RecordError(JobError):
    """A value in etcd that is not what its key says it is."""


class UnknownSchemaError(RecordError):
    """A value written by a version of nvrx-async whose records this one cannot read."""

    def __init__(self, key: str, found: object, known: int) -> None:
        super().__init__(
            f"{key} has schema {found!r}, this version reads schema {known}: run the same nvrx-async on all nodes"
        )
