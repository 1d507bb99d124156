"""Work that may block for ever, such as on a disk that never answers, in a thread that nobody has to wait for.

`anyio.to_thread` lends out 40 threads, which calls that never return would use up, and a process waits for all of
them at its exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


async def aside(
    work: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    unwanted: Callable[[Result], object] = lambda _result: None,
) -> Result:
    """Do the work in a thread of its own and return what comes of it; a caller that is cancelled leaves it alone.

    `unwanted` is given what comes of it then, in whatever thread: a descriptor, say, that nobody else would close.

    Raises:
        OSError: no thread can be started (EAGAIN), such as where a container may have no more of them.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result) -> None:
        if outcome.done():
            unwanted(result)
        else:
            outcome.set_result(result)

    def fail(error: BaseException) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    def do() -> None:
        try:
            result = context.run(work, *arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcome is awaited
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(fail, error)
            return
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:  # the loop has ended meanwhile
            unwanted(result)

    context = contextvars.copy_context()
    try:
        threading.Thread(target=do, name="aside", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"{error}; the limit of processes and threads is reached") from error
    try:
        return await outcome
    except asyncio.CancelledError:
        if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
            unwanted(outcome.result())  # it came in the same moment
        raise
