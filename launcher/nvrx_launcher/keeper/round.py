"""All processes of one round on this node, from the first fork to the last reaping."""

from __future__ import annotations

import os
import signal

from . import linux, processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost the keeper a megabyte
    from collections.abc import Collection, Iterable

    from .rank import Rank
    from .spool import Stream


class Round:
    """Ranks and what they started: all that the keeper, a sub-reaper, is parent of but for idle processes."""

    def __init__(self, number: int, idle: Collection[int] = ()) -> None:
        self.number = number
        self._idle = idle
        self.ranks: list[Rank] = []
        self.fenced = False
        self.promised_until_s = 0.0
        self.kill_at_s: float | None = None
        self.killed_at_s: float | None = None
        self._owners: dict[tuple[int, int], int] = {}

    @property
    def running(self) -> list[Rank]:
        """Ranks that were not reaped yet."""
        return [rank for rank in self.ranks if not rank.reaped]

    @property
    def streams(self) -> Iterable[Stream]:
        """Output streams of all ranks."""
        return (stream for rank in self.ranks for stream in rank.streams)

    def stop(self, grace_s: float) -> None:
        """SIGTERM once, and SIGKILL at the end of the grace. A later call can only shorten the grace."""
        first = self.kill_at_s is None
        kill_at_s = linux.boottime_s() + max(grace_s, 0.0)
        self.kill_at_s = kill_at_s if self.kill_at_s is None else min(self.kill_at_s, kill_at_s)
        if grace_s <= 0:
            self.kill()
        elif first:
            for rank in self.running:  # one that ignores SIGTERM would only wait for the end of the grace
                ignored = processes.ignores(rank.pid, signal.SIGTERM)
                rank.send(signal.SIGKILL if ignored else signal.SIGTERM)

    def signal(self, signum: int) -> None:
        """Send a signal to every rank that runs."""
        for rank in self.running:
            rank.send(signum)

    def kill(self) -> None:
        """SIGKILL everything that lives. To be repeated after each death until no child is left.

        A process killed before its children leaves them to the keeper, and its death is a SIGCHLD; one that
        forked between the look and the kill is found by the look that follows its death.
        """
        if self.killed_at_s is None:
            self.killed_at_s = linux.boottime_s()
            self.signal(signal.SIGKILL)  # the quick way, before the look at all processes
        for stat in self._living():
            processes.kill(stat)

    def unkillable(self) -> list[int]:
        """Local ranks of which a process still lives; one that hides whose it is counts for the first."""
        fallback = self.ranks[0].local_rank
        return sorted({self._owners.get((stat.pid, stat.start_ticks), fallback) for stat in self._living()})

    def close(self) -> None:
        """Take what is left in the pipes and give all descriptors back.

        Nothing of the round writes any more, so a pipe that is not at its end is held by a stranger it was
        handed to; what the round wrote is read before.
        """
        for rank in self.ranks:
            for stream in rank.streams:
                if stream.fd >= 0:
                    stream.pump_all(chunks=64)
            rank.close()

    def _living(self) -> list[processes.Stat]:
        """Descendants that are no zombies; notes to which rank each belongs, while the chain to it exists."""
        below = processes.descendants(processes.table(), [os.getpid()], besides=self._idle)
        sessions = {rank.pid: rank.local_rank for rank in self.ranks if rank.pid}
        by_pid: dict[int, int] = {}
        for stat in below:
            key = (stat.pid, stat.start_ticks)
            owner = sessions.get(stat.session, by_pid.get(stat.parent, self._owners.get(key)))
            if owner is not None:
                by_pid[stat.pid] = self._owners[key] = owner
        return [stat for stat in below if stat.alive]
