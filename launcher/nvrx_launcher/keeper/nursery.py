"""Hooked processes: ranks that are watched until they import, and idle ones that wait to become ranks."""

from __future__ import annotations

import contextlib
import os
import signal

from . import linux
from .hook import Hook
from .rank import Rank

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost the keeper a megabyte
    from collections.abc import Callable, Mapping
    from typing import Any

_LAST_WORDS_BYTES = 64 << 10


class Idle:
    """A process that is no rank yet. `ready`: it has imported everything and waits."""

    def __init__(self, rank: Rank, hook: Hook) -> None:
        self.rank = rank
        self.hook = hook
        self.ready = False


class Nursery:
    """Starts hooked processes, hears their hooks, hands idle ones out."""

    def __init__(
        self,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        report: Callable[..., None],
    ) -> None:
        self._watch = watch
        self._unwatch = unwatch
        self._report = report
        self._by_rank: dict[int, Idle] = {}
        self.idle: dict[int, Idle] = {}
        """By pid; killed ones too until they are reaped."""

    def prepare(self, spec: Mapping[str, Any], dispositions: Mapping[int, Any], null_fd: int) -> None:
        """Start an idle process for a local rank, in place of the one that may be there."""
        local_rank: int = spec["local_rank"]
        self.discard(local_rank)
        if not linux.knows_children():
            self._report(
                "idle_lost", local_rank=local_rank, pid=0, why="the kernel tells no process its children"
            )
            return
        rank = Rank(spec)
        hook = self._start(rank, spec["hook"], dispositions, null_fd)
        if not rank.pid:
            hook.close()
            rank.close()
            self._report("idle_lost", local_rank=local_rank, pid=0, why="it could not be forked")
            return
        self.idle[rank.pid] = self._by_rank[local_rank] = Idle(rank, hook)

    def start_watched(self, rank: Rank, dispositions: Mapping[int, Any], null_fd: int) -> None:
        """Start a rank whose hook tells what it imports."""
        hook = self._start(rank, rank.spec["hook"], dispositions, null_fd)
        if not rank.pid:
            self._forget(hook)

    def take(self, spec: Mapping[str, Any]) -> Rank | None:
        """Turn the idle process that the order names into the rank; None if it cannot be."""
        release, local_rank = spec.get("release"), spec["local_rank"]
        idle = self._by_rank.get(local_rank)
        if release is None or idle is None or idle.rank.pid != release["pid"] or not idle.ready:
            return None
        if not idle.hook.release(release["names"], release["wait_ms"]):
            self.discard(local_rank)
            return None
        del self._by_rank[local_rank], self.idle[idle.rank.pid]
        self._forget(idle.hook)
        idle.rank.begin(spec)
        return idle.rank

    def discard(self, local_rank: int) -> None:
        """Kill the idle process of a local rank, if there is one."""
        idle = self._by_rank.pop(local_rank, None)
        if idle is not None:
            self._forget(idle.hook)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(idle.rank.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(idle.rank.pid, signal.SIGKILL)  # not yet leader of its own group

    def discard_all(self) -> None:
        """Kill every idle process."""
        for local_rank in list(self._by_rank):
            self.discard(local_rank)

    def reaped(self, pid: int, status: int) -> bool:
        """Note the end of an idle process; False if it was none."""
        idle = self.idle.pop(pid, None)
        if idle is None:
            return False
        if self._by_rank.get(idle.rank.local_rank) is idle:  # else killed by `discard`
            del self._by_rank[idle.rank.local_rank]
            said, _ = idle.hook.read()
            why = said[-1].partition("\t")[2] if said else _how(status, idle.rank)
            self._forget(idle.hook)
            self._report("idle_lost", local_rank=idle.rank.local_rank, pid=pid, why=why)
        idle.rank.close()
        return True

    def _start(
        self, rank: Rank, order: Mapping[str, Any], dispositions: Mapping[int, Any], null_fd: int
    ) -> Hook:
        hook = Hook(order)
        rank.start(dispositions, null_fd, hook)
        hook.started()
        self._watch(hook.fd, lambda: self._on_hook(rank, hook))
        return hook

    def _on_hook(self, rank: Rank, hook: Hook) -> None:
        lines, more = hook.read()
        for line in lines:
            kind, _, rest = line.partition("\t")
            if kind == "ready" and rank.pid in self.idle:
                self.idle[rank.pid].ready = True
                linux.claim_cpu(rank.pid)
            if kind == "unfit":
                self.discard(rank.local_rank)
            self._report("hook", local_rank=rank.local_rank, pid=rank.pid, kind=kind, text=rest)
        if not more:
            self._forget(hook)

    def _forget(self, hook: Hook) -> None:
        if hook.fd >= 0:
            self._unwatch(hook.fd)
            hook.close()
            hook.fd = -1


def _how(status: int, rank: Rank) -> str:
    words = rank.last_words(_LAST_WORDS_BYTES).decode("utf-8", "replace").strip().splitlines()
    last = f": {words[-1]}" if words else ""
    if os.WIFSIGNALED(status):
        return f"it was ended by signal {os.WTERMSIG(status)}{last}"
    return f"it exited with {os.WEXITSTATUS(status)}{last}"
