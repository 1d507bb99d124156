"""Keeps large PyTorch trainings running: rounds agreed through etcd, ranks restarted when one fails.

For training scripts: `connect`, the rank's link to its agent, and `NonRetryable`. Importing this package loads
nothing else; a rank pays for what it uses. The rooms of the agent are `nvrx_async.etcd`, `nvrx_async.job` and
`nvrx_async.rounds`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # the real import costs 1 ms
    from nvrx_async.errors import NonRetryable
    from nvrx_async.ranklink.rank import Connection

__all__ = ["NonRetryable", "__version__", "connect"]

__version__ = "0.1.0"


def __getattr__(name: str) -> type[NonRetryable]:
    if name == "NonRetryable":
        from nvrx_async.errors import NonRetryable as Raised  # noqa: PLC0415 - only who raises it pays for it

        return Raised
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def connect() -> Connection:
    """Connect this training process to its agent: `with nvrx_async.connect() as rank` (or `async with`).

    Reports cost a few memory writes and never block. Outside `nvrx-launch` they go nowhere, which is said once.
    """
    from nvrx_async.ranklink.rank import connect as connect_rank  # noqa: PLC0415 - only ranks pay for it

    return connect_rank()
