"""Leaving an object that owns a task group as a context manager."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup


async def leave(
    tasks: TaskGroup,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Cancel the tasks and wait for them.

    An error of the block passes by unwrapped (anyio would put it into an exception group); a cancellation
    goes through the group, which has to tell its own from one that comes from outside.
    """
    tasks.cancel_scope.cancel()
    if kind is not None and issubclass(kind, asyncio.CancelledError):
        await tasks.__aexit__(kind, error, trace)
    else:
        await tasks.__aexit__(None, None, None)
