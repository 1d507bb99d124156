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


async def aside(work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Do the work in a thread of its own and return what comes of it; a caller that is cancelled leaves it alone.

    Raises:
        OSError: no thread can be started (EAGAIN), such as where a container may have no more of them.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result) -> None:
        if not outcome.done():
            outcome.set_result(result)

    def fail(error: BaseException) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    def do() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            try:
                result = context.run(work, *arguments)
            except BaseException as error:  # noqa: BLE001 - it is raised where the outcome is awaited
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(settle, result)

    context = contextvars.copy_context()
    try:
        threading.Thread(target=do, name="aside", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"{error}; the limit of processes and threads is reached") from error
    return await outcome
