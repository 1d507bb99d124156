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


class NoSuchError(JobError):
    """A name that leads to nothing. `message` and `hint` are for people; `nearest` are names that are there."""

    def __init__(self, message: str, hint: str, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.nearest = nearest


class NoSuchJobError(NoSuchError):
    """etcd holds no job of this name."""

    def __init__(self, run_id: str, nearest: tuple[str, ...], known: int) -> None:
        meant = f"did you mean {' or '.join(nearest)}?"
        others = (
            "nvrx ps lists all jobs" if known else "this etcd holds no job; is it the right one (--etcd)?"
        )
        super().__init__(f"there is no job {run_id}", meant if nearest else others, nearest)


class NoSuchRoundError(NoSuchError):
    """The attempt has no such round, or has forgotten it."""

    def __init__(self, run_id: str, number: int, last: int) -> None:
        which = f"it has rounds 0 to {last}" if last else "it has round 0 only"
        super().__init__(f"job {run_id} has no round {number}", which)


class NotSoError(JobError):
    """What was waited for will not be any more: the job ended, or the time is over."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UnansweredError(JobError):
    """A command was written and nobody has carried it out yet; it stands, and may still be."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
