"""What a training script may raise to tell its agent something."""

from __future__ import annotations

from typing import Self

NOTE = "NonRetryable: another try would meet it again"


class NonRetryable(Exception):  # noqa: N818 - the name says what it does to the job
    """An error that another try would meet again: bad data, a wrong setting.

    The job stops at once, whatever `--max-restarts` has left, with exit code 93: do not requeue. Raise it or a
    subclass, and let it end the process: its name, or the note that each carries, is read from the traceback. A
    program in another language exits with 93.
    """

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """With the note, whatever a subclass's `__init__` does."""
        del kwargs  # for `__init__` alone: OSError and others take none here
        made = super().__new__(cls, *args)
        made.add_note(NOTE)
        return made
