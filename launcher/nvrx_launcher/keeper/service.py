"""The keeper's loop: one thread, one epoll, nothing that blocks but the write to a spool file.

Orders (agent to keeper): `start`, `fence`, `stop`, `signal`, `seen`, `prepare`, `discard`, `resize`. Reports:
`ready`, `refused`, `started`, `exited`, `grew`, `fenced`, `warning`, `gone`, `hook`, `idle_lost`.
`nvrx_launcher.keeper_link` is the other side.
"""

from __future__ import annotations

import os
import select
import signal
import socket

from . import frames, linux
from .errors import FrameError
from .nursery import Nursery
from .rank import Rank, inherited_dispositions
from .round import Round

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost the keeper a megabyte
    from collections.abc import Callable, Mapping
    from typing import Any

    from .spool import Stream

_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)
_UNSENT_LIMIT_BYTES = 8 << 20
_PUMP_AT_EXIT = 8


def main(arguments: list[str]) -> int:
    """Serve one agent until it is gone; 1 if a process outlived SIGKILL. `argparse` would cost 2 MB."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    service = Service(
        int(options["--control"]),
        generation=int(options["--generation"]),
        unkillable_after_s=float(options.get("--unkillable-after-s", "10")),
    )
    return service.run()


class Service:
    """State of the keeper and its event loop."""

    def __init__(self, control_fd: int, *, generation: int, unkillable_after_s: float) -> None:
        os.set_inheritable(control_fd, False)  # noqa: FBT003 - takes no keywords
        self._control = socket.socket(fileno=control_fd)
        self._control.setblocking(False)  # noqa: FBT003 - takes no keywords
        self._generation = generation
        self._unkillable_after_s = unkillable_after_s
        self._dispositions = inherited_dispositions()
        self._good_until_s = 0.0
        self._round: Round | None = None
        self._has_children = False
        self._leaving = False
        self._exit_code: int | None = None
        self._decoder = frames.Decoder()
        self._unsent = bytearray()
        self._epoll = select.epoll()
        self._timer = linux.Timer()
        self._null_fd = os.open(os.devnull, os.O_RDONLY)
        self._handlers: dict[int, Callable[[], None]] = {}
        self._nursery = Nursery(self._watch, self._unwatch, self._report)

    def run(self) -> int:
        """Serve until the agent is gone and nothing that it had started lives."""
        linux.set_name(b"nvrx-keeper")
        linux.become_subreaper()
        linux.raise_descriptor_limit()
        self._watch_signals()
        self._watch(self._timer.fd, self._timer.clear)
        self._watch(self._control.fileno(), self._on_control)
        self._report("ready", pid=os.getpid(), generation=self._generation)
        while self._exit_code is None:
            self._timer.arm(self._next_deadline_s())
            for fd, _ in self._epoll.poll():
                handler = self._handlers.get(fd)
                if handler is not None:  # else closed by a handler of this batch
                    handler()
            self._advance()
        return self._exit_code

    # --- time and completion -------------------------------------------------------------------------------

    def _next_deadline_s(self) -> float | None:
        """The next moment at which `_advance` has something to do without any event."""
        current = self._round
        if current is None:
            return None
        if current.killed_at_s is not None:
            return current.killed_at_s + self._unkillable_after_s
        t_s = self._t_s(current)
        return min(t_s, current.kill_at_s or t_s)

    def _t_s(self, current: Round) -> float:
        """T of this round's ranks: by the lease, or by promises that hold for this round alone."""
        return max(self._good_until_s, current.promised_until_s)

    def _advance(self) -> None:
        """Bring the round to where it should be now."""
        current, now_s = self._round, linux.boottime_s()
        if current is not None and current.killed_at_s is None:
            self._kill_if_due(current, now_s)
        if current is not None and self._is_over(current, now_s):
            self._end(current)
        if self._leaving and self._round is None and not self._nursery.idle:
            self._exit_code = 1 if self._has_children else 0

    def _kill_if_due(self, current: Round, now_s: float) -> None:
        if not self._has_children:
            return
        if now_s >= self._t_s(current):
            # Where the disk of a log kept this process from its orders, a later T may be among them.
            self._on_control()
        if now_s >= self._t_s(current):
            self._fence(current)
        elif not current.running:
            current.kill()  # helpers that outlived all ranks
        elif current.kill_at_s is not None and now_s >= current.kill_at_s:
            current.kill()

    def _fence(self, current: Round) -> None:
        self._reap()  # what ended before was not killed by us
        current.fenced = True
        current.kill()
        self._report("fenced", round=current.number, good_until_s=self._t_s(current))

    def _is_over(self, current: Round, now_s: float) -> bool:
        if not self._has_children:
            return True
        killed_at_s = current.killed_at_s
        return killed_at_s is not None and now_s >= killed_at_s + self._unkillable_after_s

    def _end(self, current: Round) -> None:
        unkillable = current.unkillable() if self._has_children else []
        for stream in current.streams:
            self._unwatch(stream.fd)
        current.close()
        for stream in current.streams:
            self._warn_of_loss(current, stream)
        lost_bytes = sum(stream.spool.lost_bytes for stream in current.streams)
        self._round = None
        self._report("gone", round=current.number, unkillable=unkillable, lost_bytes=lost_bytes)

    # --- children ------------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        wake_r, wake_w = os.pipe()
        os.set_blocking(wake_r, False)
        os.set_blocking(wake_w, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

        def on_children() -> None:
            os.read(wake_r, 4096)
            self._reap()
            if self._round is not None and self._round.killed_at_s is not None and self._has_children:
                self._round.kill()

        self._watch(wake_r, on_children)

    def _reap(self) -> None:
        """Take the exit status of every child that ended, orphans that came to us included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                if self._nursery.idle:  # children of their own kind: the round is over without them
                    found = linux.children()  # holds the idle ones at least, or could not be read
                    self._has_children = not found or not found <= self._nursery.idle.keys()
                return
            if not self._nursery.reaped(pid, status):
                self._note_end(pid, status)

    def _note_end(self, pid: int, status: int) -> None:
        current = self._round
        rank = next((rank for rank in current.running if rank.pid == pid), None) if current else None
        if current is None or rank is None:
            return
        rank.reaped = True
        for stream in rank.streams:
            if stream.fd >= 0:
                stream.pump_all(_PUMP_AT_EXIT)  # its last lines are in the file when its end is told
        self._report("exited", round=current.number, **rank.end(status))

    # --- output --------------------------------------------------------------------------------------------

    def _on_output(self, stream: Stream) -> None:
        """One chunk at a time: level-triggered epoll comes back, after the other ranks had their turn."""
        current = self._round
        if stream.pump() == 0:
            self._unwatch(stream.fd)
            os.close(stream.fd)
            stream.fd = -1
        if current is not None:
            self._tell_growth(current, stream)
            self._warn_of_loss(current, stream)

    def _tell_growth(self, current: Round, stream: Stream) -> None:
        if stream.take_growth():
            self._report("grew", round=current.number, local_rank=stream.local_rank, stream=stream.name)

    def _warn_of_loss(self, current: Round, stream: Stream) -> None:
        error = stream.spool.error
        if error is None or stream.warned:
            return
        stream.warned = True
        self._report(
            "warning",
            round=current.number,
            local_rank=stream.local_rank,
            stream=stream.name,
            path=stream.spool.path,
            error=os.strerror(error.errno or 0),
        )

    # --- orders --------------------------------------------------------------------------------------------

    def _on_control(self) -> None:
        if self._leaving:
            return
        self._flush()
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        try:
            for message in self._decoder.feed(data):
                self._obey(message)
        except FrameError:
            data = b""  # an agent that cannot be understood cannot stop its ranks: as if it were gone
        if not data:
            self._leave()

    def _obey(self, message: Mapping[str, Any]) -> None:
        order = message["order"]
        if order == "fence":
            self._move_t(message["good_until_s"], message.get("round"))
        elif order == "start":
            self._start(message)
        elif order == "seen":
            self._seen(message["local_rank"], message["stream"])
        elif order == "prepare":
            if message["generation"] == self._generation and not self._leaving:
                self._nursery.prepare(message["rank"], self._dispositions, self._null_fd)
        elif order == "discard":
            self._nursery.discard(message["local_rank"])
        elif order == "resize":
            for rank in self._round.running if self._round else ():
                rank.resize(message["terminal"])
        elif self._round is not None and self._round.number == message["round"]:
            self._reap()  # what ended before the order was not ended by it
            if order == "stop":
                self._round.stop(message["grace_s"])
            elif order == "signal":
                self._round.signal(message["signum"])

    def _move_t(self, good_until_s: float, number: int | None) -> None:
        """Later only; with a number for the ranks of that round alone, which were promised to live so long."""
        if number is None:
            self._good_until_s = max(self._good_until_s, good_until_s)
        elif self._round is not None and self._round.number == number:
            self._round.promised_until_s = max(self._round.promised_until_s, good_until_s)

    def _start(self, message: Mapping[str, Any]) -> None:
        self._reap()
        number: int = message["round"]
        refusal = self._refusal(message["generation"])
        if refusal is not None:
            code, reason = refusal
            self._report("refused", round=number, code=code, reason=reason)
            return
        self._round = Round(number, self._nursery.idle.keys())
        for spec in message["ranks"]:
            rank = self._nursery.take(spec)
            warm = rank is not None
            if rank is None:
                rank = self._start_cold(spec)
            self._round.ranks.append(rank)
            self._after_start(self._round, rank, warm=warm)

    def _start_cold(self, spec: Mapping[str, Any]) -> Rank:
        rank = Rank(spec)
        if spec.get("hook") is not None:
            self._nursery.start_watched(rank, self._dispositions, self._null_fd)
        else:
            rank.start(self._dispositions, self._null_fd)
        rank.begin(spec)
        return rank

    def _after_start(self, current: Round, rank: Rank, *, warm: bool) -> None:
        for stream in rank.streams:
            self._watch(stream.fd, lambda stream=stream: self._on_output(stream))  # type: ignore[misc]  # bound now
            self._warn_of_loss(current, stream)
        if rank.pid:
            self._has_children = True
            self._report("started", round=current.number, local_rank=rank.local_rank, pid=rank.pid, warm=warm)
        else:
            self._report("exited", round=current.number, **rank.end(0))

    def _refusal(self, generation: int) -> tuple[str, str] | None:
        now_s, good_until_s = linux.boottime_s(), self._good_until_s
        if generation != self._generation:
            return "generation", f"the order is for keeper {generation}, this is keeper {self._generation}"
        if now_s >= good_until_s:
            since = (
                f"the deadline passed {now_s - good_until_s:.1f} s ago"
                if good_until_s
                else "no deadline is set"
            )
            return "fence", f"ranks may not start: {since}"
        if self._round is not None or self._has_children:
            return "busy", "processes of an earlier round still live"
        return None

    def _seen(self, local_rank: int, name: str) -> None:
        for stream in self._round.streams if self._round else ():
            if (stream.local_rank, stream.name) == (local_rank, name):
                stream.may_tell = True
                self._tell_growth(self._round, stream)  # type: ignore[arg-type]  # there are streams, so a round

    def _leave(self) -> None:
        """The agent is gone: kill everything, then go too."""
        self._leaving = True
        self._unwatch(self._control.fileno())
        self._nursery.discard_all()
        if self._round is not None:
            self._reap()
            self._round.stop(0)

    # --- plumbing ------------------------------------------------------------------------------------------

    def _report(self, report: str, **fields: Any) -> None:
        self._unsent += frames.encode({"report": report, **fields})
        if len(self._unsent) > _UNSENT_LIMIT_BYTES and not self._leaving:
            self._leave()  # reports are few by construction: this agent only sends and never reads
        self._flush()

    def _flush(self) -> None:
        """Send what the socket takes; epoll tells when it takes more."""
        try:
            while self._unsent:
                del self._unsent[: self._control.send(self._unsent, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the agent is gone, which the next recv tells
        fd = self._control.fileno()
        if fd in self._handlers:
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0))

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
