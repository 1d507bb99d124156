"""Keeps large PyTorch trainings running: rounds agreed through etcd, ranks restarted when one fails.

For training scripts: `connect`, the rank's link to its agent, and `NonRetryable`. Importing this package loads
nothing else; a rank pays for what it uses. The rooms of the agent are `nvrx_async.etcd`, `nvrx_async.job` and
`nvrx_async.rounds`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # the real import costs 1 ms
    from nvrx_async.ranklink.rank import Connection

__all__ = ["NonRetryable", "__version__", "connect"]

__version__ = "0.1.0"


class NonRetryable(Exception):  # noqa: N818 - the name says what it does to the job
    """Raised by a training script for an error that another try would meet again: bad data, a wrong setting.

    The job stops at once, whatever `--max-restarts` has left, with exit code 93: do not requeue. Raise it itself
    and not a subclass, and let it end the process: its name is read from the traceback. A program in another
    language exits with 93.
    """


def connect() -> Connection:
    """Connect this training process to its agent: `with nvrx_async.connect() as rank` (or `async with`).

    Reports cost a few memory writes and never block. Outside `nvrx-launch` they go nowhere, which is said once.
    """
    from nvrx_async.ranklink.rank import connect as connect_rank  # noqa: PLC0415 - only ranks pay for it

    return connect_rank()
