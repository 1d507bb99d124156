"""The few calls of Linux that Python 3.11 does not offer, through the C library that is loaded anyway."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_NANOSECONDS = 1_000_000_000
_NICE_OF_IDLE = 20
_CAP_SYS_NICE = 23
_CHILDREN = "/proc/{0}/task/{0}/children"

_DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

# Loaded before any fork: a child only calls.
_LIBC = ctypes.CDLL(None, use_errno=True)


def boottime_s() -> float:
    """Seconds of CLOCK_BOOTTIME, which goes on while the machine is suspended. Deadlines are told in it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when the thread that forked it ends. Exec keeps it, setuid not."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL.value)


def become_subreaper() -> None:
    """Descendants whose parent died become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may have: a keeper needs eight for each rank."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_descriptor_limit() -> None:
    """In a child: have the limit that this process was started with."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))


def yield_cpu() -> None:
    """Run this process when nobody else wants the CPU, as far as `claim_cpu` can undo it.

    Leaving SCHED_IDLE takes CAP_SYS_NICE or RLIMIT_NICE >= 20 (sched(7)), leaving SCHED_BATCH nothing; a nice
    value could not be taken back either.
    """
    may_return = resource.getrlimit(resource.RLIMIT_NICE)[0] >= _NICE_OF_IDLE or _has_sys_nice()
    policy = os.SCHED_IDLE if may_return else os.SCHED_BATCH
    os.sched_setscheduler(0, policy, os.sched_param(0))


def claim_cpu(pid: int) -> None:
    """Give all threads of a process that had yielded the policy of this one back."""
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(OSError):  # it ends, or a thread of it
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib costs memory
            os.sched_setscheduler(int(thread), policy, param)


def children() -> set[int]:
    """Direct children of this process, zombies included; empty where the kernel does not tell.

    Exact for a process of one thread that is not reaping meanwhile: only reaping takes a child off the
    kernel's list, and new ones come at its end (fs/proc/array.c).
    """
    try:
        with open(_CHILDREN.format(os.getpid()), "rb") as file:  # noqa: PTH123 - as above
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()


def knows_children() -> bool:
    """Whether `children` works here (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(_CHILDREN.format(os.getpid()))  # noqa: PTH110 - as above


def _has_sys_nice() -> bool:
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123 - as above
        effective = next((line for line in file if line.startswith(b"CapEff:")), b"CapEff: 0")
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_NICE & 1)


def set_name(name: bytes) -> None:
    """The name that `ps` and `top` show, at most 15 bytes."""
    _check(_LIBC.prctl(_PR_SET_NAME, name, 0, 0, 0), "prctl")


class Timer:
    """A descriptor that becomes readable at a moment of CLOCK_BOOTTIME.

    The timeout of epoll runs on CLOCK_MONOTONIC: after a suspend it would be late by the time slept.
    """

    def __init__(self) -> None:
        clock, flags = time.CLOCK_BOOTTIME, _TFD_NONBLOCK | _TFD_CLOEXEC
        self.fd: int = _check(_LIBC.timerfd_create(clock, flags), "timerfd_create")
        self._armed_for_s: float | None = None

    def arm(self, at_s: float | None) -> None:
        """Fire at `at_s` (at once if it has passed), or never."""
        if at_s == math.inf:
            at_s = None
        if at_s == self._armed_for_s:
            return
        self._armed_for_s = at_s
        # struct itimerspec on 64 bit: interval and first expiry, each seconds and nanoseconds.
        whole, fraction = divmod(int((at_s or 0) * _NANOSECONDS), _NANOSECONDS)
        value = (ctypes.c_long * 4)(0, 0, whole, fraction)
        _check(_LIBC.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, value, None), "timerfd_settime")

    def clear(self) -> None:
        """Make the descriptor unreadable after it fired."""
        self._armed_for_s = None
        with contextlib.suppress(BlockingIOError):  # armed anew between poll and now
            os.read(self.fd, 8)


def _prctl(option: int, value: int) -> None:
    arguments = [ctypes.c_ulong(item) for item in (value, 0, 0, 0)]
    _check(_LIBC.prctl(option, *arguments), "prctl")


def _check(result: int, call: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result
