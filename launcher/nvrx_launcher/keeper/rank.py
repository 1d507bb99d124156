"""One rank: how it is started, and what is known of its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import sys
import warnings  # noqa: F401 - os.execvpe imports it, where the child may not be able to open a file

from . import linux, processes
from .channel import channel, resize
from .spool import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost the keeper a megabyte
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

    from .hook import Hook

STEPS = ("fork", "session", "cpus", "folder", "exec")
"""Steps of a start, for reports of a failed one."""

# What a process does to itself, or the kernel in answer to what it did.
_OWN_SIGNALS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGPIPE,
        signal.SIGALRM,
        signal.SIGVTALRM,
        signal.SIGPROF,
        signal.SIGXCPU,
        signal.SIGXFSZ,
    }
)
_PIPE_BYTES = 1 << 20
_STATUS = struct.Struct("<ii")
_CANNOT_START = 127


class Rank:
    """A rank that was forked, or could not be."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.local_rank: int = spec["local_rank"]
        self.spec = spec
        self.pid = 0
        self.started_s = linux.boottime_s()
        self.streams: list[Stream] = []
        self.sent: set[int] = set()
        self.told_to_end = False
        self.reaped = False
        self._status_fd = -1
        self._failure: tuple[int, int] | None = None
        self._output: dict[str, int] = {}

    def start(self, dispositions: Mapping[int, Any], null_fd: int, hook: Hook | None = None) -> None:
        """Fork and exec; a failure of either is in `end()` later, never raised."""
        fds: list[int] = []
        try:
            for name in ("stdout", "stderr"):
                self._output[name], write_fd = channel(self.spec.get("terminal"))
                _enlarge(write_fd)
                fds.append(write_fd)
            self._status_fd, status_w = os.pipe()
            fds.append(status_w)
            os.set_blocking(self._status_fd, False)
            # A signal that reaches the child before it has its own dispositions stays pending until then.
            signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
            keeper = os.getpid()
            self.pid = os.fork()
            if self.pid == 0:
                _become(self.spec, keeper, (null_fd, *fds[:2]), status_w, dispositions, hook)
        except OSError as error:
            self._failure = (error.errno or 0, STEPS.index("fork"))
            self.reaped = True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for fd in fds:
                os.close(fd)

    def begin(self, spec: Mapping[str, Any]) -> None:
        """Be this rank from now on: what it writes, and has written, goes to the files of `spec`."""
        self.spec, self.started_s = spec, linux.boottime_s()
        for name, fd in self._output.items():
            self.streams.append(Stream(self.local_rank, name, fd, spec[f"{name}_path"]))
        self._output = {}
        if spec.get("terminal"):  # it may have become another size while the process was idle
            self.resize(spec["terminal"])

    def last_words(self, size: int) -> bytes:
        """What a process that is no rank yet has written to stderr, at most the first `size` bytes."""
        fd = self._output.get("stderr")
        if fd is None:
            return b""
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            return os.read(fd, size)
        return b""

    def resize(self, terminal: Sequence[int]) -> None:
        """Its terminals have these rows and columns now. They control no session, so the kernel tells nobody."""
        for stream in self.streams:
            if stream.fd >= 0 and os.isatty(stream.fd):
                resize(stream.fd, terminal)
        if self.pid and not self.reaped:
            with contextlib.suppress(PermissionError):  # it became another user
                os.kill(self.pid, signal.SIGWINCH)  # no harm to who does not know it

    def send(self, signum: int) -> None:
        """Send a signal to the rank; SIGTERM and SIGKILL also to its process group, as torchrun does.

        Others are for the rank alone, and only if it has made something of them: a helper, or a program that
        never heard of SIGUSR1, would die of it.
        """
        with contextlib.suppress(PermissionError):  # it became another user: it will be told as unkillable
            if signum not in (signal.SIGTERM, signal.SIGKILL):
                if processes.expects(self.pid, signum):
                    self.sent.add(signum)
                    os.kill(self.pid, signum)
                return
            self.sent.add(signum)
            self.told_to_end = True
            try:
                os.killpg(self.pid, signum)
            except ProcessLookupError:
                os.kill(self.pid, signum)  # not yet leader of its own group

    def end(self, status: int) -> dict[str, Any]:
        """What to report of its end; `status` as of waitpid, 0 for a rank that was not forked."""
        self._read_failure()
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        report: dict[str, Any] = {
            "local_rank": self.local_rank,
            "pid": self.pid,
            "exit_code": code,
            "signal": signum,
            "by": self._by(signum),
            "ran_s": linux.boottime_s() - self.started_s,
            "failure": None,
        }
        if self._failure is not None:
            number, step = self._failure
            path = self.spec["cwd"] if STEPS[step] == "folder" else self.spec["argv"][0]
            report.update(exit_code=None, signal=None, by="itself")
            report["failure"] = {"errno": number, "step": STEPS[step], "path": path}
        return report

    def close(self) -> None:
        """Give all descriptors back."""
        for stream in self.streams:
            stream.close()
        for fd in self._output.values():
            os.close(fd)
        self._output = {}
        if self._status_fd >= 0:
            os.close(self._status_fd)
            self._status_fd = -1

    def _by(self, signum: int | None) -> str:
        if self.told_to_end or signum in self.sent:
            return "us"
        return "itself" if signum is None or signum in _OWN_SIGNALS else "someone_else"

    def _read_failure(self) -> None:
        """The child is dead: it wrote its failure, or exec closed its end."""
        if self._status_fd < 0:
            return
        try:
            record = os.read(self._status_fd, _STATUS.size)
        except BlockingIOError:
            record = b""
        if len(record) == _STATUS.size:
            self._failure = _STATUS.unpack(record)


def inherited_dispositions() -> dict[int, Any]:
    """What each signal does in ranks, to be read before the keeper sets its own.

    A signal that was ignored when the job was started (`nohup`, a background job of a shell) is ignored in
    ranks too. SIGTERM is not: ranks are stopped by it. Python itself ignores SIGPIPE and SIGXFSZ.
    """
    always_default = {signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD}
    fixed = {signal.SIGKILL, signal.SIGSTOP}
    return {
        number: signal.SIG_IGN
        if number not in always_default and signal.getsignal(number) == signal.SIG_IGN
        else signal.SIG_DFL
        for number in signal.valid_signals() - fixed
    }


def _enlarge(fd: int) -> None:
    """Let a rank write on while the keeper is busy; without the privilege the pipe keeps its 64 KiB."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _become(
    spec: Mapping[str, Any],
    keeper: int,
    standard_fds: tuple[int, ...],
    status_fd: int,
    dispositions: Mapping[int, Any],
    hook: Hook | None,
) -> NoReturn:
    """Turn the forked child into the rank. The keeper has one thread, so the fork copied no held lock."""
    step = "session"
    try:
        os.setsid()
        linux.die_with_parent()
        if os.getppid() != keeper:
            os._exit(_CANNOT_START)  # the keeper died before the kernel knew whom to watch
        for target, fd in enumerate(standard_fds):
            os.dup2(fd, target)
        step = "cpus"
        if spec.get("cpus"):
            os.sched_setaffinity(0, spec["cpus"])
        step = "folder"
        os.chdir(spec["cwd"])
        step = "exec"
        signal.set_wakeup_fd(-1)
        for number, disposition in dispositions.items():
            signal.signal(number, disposition)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        env = spec["env"] if hook is None else hook.enter(spec["env"])
        linux.restore_descriptor_limit()  # below what is inherited, maybe: nothing can be opened any more
        os.execvpe(spec["argv"][0], spec["argv"], env)  # noqa: S606 - the user's program, no shell wanted
    except OSError as error:
        os.write(status_fd, _STATUS.pack(error.errno or 0, STEPS.index(step)))
    except BaseException:  # noqa: BLE001 - the child must not go on as a second keeper, whatever went wrong
        sys.excepthook(*sys.exc_info())  # its stderr is the rank's by now: the log tells
    finally:
        os._exit(_CANNOT_START)
