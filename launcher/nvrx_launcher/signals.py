"""Signals that an agent takes: some stop the job, others are passed on to the ranks and change nothing else."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nvrx_launcher.errors import BadValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""They stop the ranks gracefully and end the agent; torchrun's default of --signals-to-handle."""

ALWAYS_PASSED_ON: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before a time limit or a preemption."""

_NEVER: Final = frozenset(
    {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGCHLD,
        signal.SIGPIPE,
        # Faults of this process, of which Python code cannot tell the ranks.
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)


def signal_numbers(value: str) -> tuple[signal.Signals, ...]:
    """Read names of signals with commas between, such as `SIGUSR1,SIGUSR2`.

    Raises:
        BadValueError: no such signal, or one that no process can pass on.
    """
    return tuple(_number(part.strip()) for part in value.split(",") if part.strip())


def _number(name: str) -> signal.Signals:
    try:
        found = signal.Signals[name.upper()]
    except KeyError:
        raise BadValueError(f"{name} is no signal", "names such as SIGUSR1,SIGTERM") from None
    if found in _NEVER:
        raise BadValueError(f"{found.name} cannot be taken by the agent", "leave it out")
    return found


def passed_on(named: Iterable[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Signals for the ranks alone: those named that do not stop the job, beside SIGUSR1 and SIGUSR2."""
    return tuple(dict.fromkeys([*ALWAYS_PASSED_ON, *(one for one in named if one not in STOPPING)]))


def stopping(handler_of: Callable[[int], object] = signal.getsignal) -> tuple[signal.Signals, ...]:
    """Signals that stop the job: all of STOPPING, but SIGHUP where `nohup` had it ignored.

    SIGINT and SIGQUIT count also where a shell script ignores them for what it starts by `&`, as with torchrun:
    else Ctrl-C would end the script and leave the job.
    """
    left_alone = {signal.SIGHUP} if handler_of(signal.SIGHUP) is signal.SIG_IGN else set()
    return tuple(one for one in STOPPING if one not in left_alone)


def in_main_thread() -> bool:
    """Whether this thread may handle signals: Python delivers them to the main thread alone."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def held(for_ranks: Iterable[signal.Signals]) -> Iterator[None]:
    """Let the ranks' signals end nothing here before the agent listens, while it imports what it needs.

    Afterwards all handlers are those of before: an event loop gives back none of what it took.
    """
    if not in_main_thread():
        yield
        return
    for_ranks = tuple(for_ranks)
    before = {one: signal.getsignal(one) for one in {*STOPPING, *for_ranks}}
    for one in for_ranks:
        signal.signal(one, _nobody_listens)
    try:
        yield
    finally:
        for one, handler in before.items():
            if handler is not None:  # None: not set from Python, and so not to be set from here
                signal.signal(one, handler)


def _nobody_listens(_number: int, _frame: object) -> None:
    """A function, not SIG_IGN: what is started meanwhile must not inherit that."""
