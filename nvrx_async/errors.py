"""What a training script may raise to tell its agent something."""

from __future__ import annotations


class NonRetryable(Exception):  # noqa: N818 - the name says what it does to the job
    """An error that another try would meet again: bad data, a wrong setting.

    The job stops at once, whatever `--max-restarts` has left, with exit code 93: do not requeue. Raise it itself
    and not a subclass, and let it end the process: its name is read from the traceback. A program in another
    language exits with 93.
    """
