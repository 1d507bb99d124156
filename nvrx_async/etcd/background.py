"""Where anyio's structured concurrency meets objects with tasks of their own, and gRPC's."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from types import TracebackType

    from anyio.abc import TaskGroup

T = TypeVar("T")


async def scoped(call: Awaitable[T]) -> T:
    """Await a gRPC call so that anyio's cancel scopes recognize their own cancellation.

    gRPC awaits an inner task, which may turn our cancellation into the end of the call; gRPC then raises a
    `CancelledError` of its own, which no scope knows and which would end the whole task group.
    """
    try:
        return await call
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint_if_cancelled()
        raise


@asynccontextmanager
async def beside(call: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Do something else while the block goes on; it is cancelled with the block, whose errors pass by unwrapped."""
    tasks = anyio.create_task_group()
    await tasks.__aenter__()
    tasks.start_soon(call)
    try:
        yield
    except BaseException as error:
        await leave(tasks, type(error), error, error.__traceback__)
        raise
    await leave(tasks, None, None, None)


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
