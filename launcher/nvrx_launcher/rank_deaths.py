"""Deaths of ranks as the kernel tells them to anybody, held against what their keeper says.

A keeper that waits for a disk which does not answer tells of no end: the job would wait with it.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable

from nvrx_launcher.keeper.linux import boottime_s

TOLD_WITHIN_S = 10.0
"""How long a keeper may take to tell of a rank's end: one that is late costs the node a restart."""


class RankDeaths:
    """Follows the ranks of one keeper by pidfd. `changed` is called when there is another `overdue_at_s`."""

    def __init__(self, told_within_s: float, changed: Callable[[], None]) -> None:
        self._told_within_s = told_within_s
        self._changed = changed
        self._pidfds: dict[int, int] = {}
        self._due_s: dict[int, float] = {}

    @property
    def overdue_at_s(self) -> float:
        """When (CLOCK_BOOTTIME) the keeper must have told of an end that was seen; never, if of all."""
        return min(self._due_s.values(), default=math.inf)

    def watch(self, local_rank: int, pid: int) -> None:
        """A rank was started. One that was reaped meanwhile has been told of, or will be in a moment."""
        self.told(local_rank)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # reaped already, or no descriptor is left: then its keeper is believed
            return
        self._pidfds[local_rank] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._died, local_rank)

    def told(self, local_rank: int) -> None:
        """The keeper told of its end."""
        self._close(local_rank)
        if self._due_s.pop(local_rank, None) is not None:
            self._changed()

    def forget_all(self) -> None:
        """The round is over, or the keeper."""
        for local_rank in list(self._pidfds):
            self._close(local_rank)
        self._due_s.clear()

    def _died(self, local_rank: int) -> None:
        self._close(local_rank)
        self._due_s[local_rank] = boottime_s() + self._told_within_s
        self._changed()

    def _close(self, local_rank: int) -> None:
        pidfd = self._pidfds.pop(local_rank, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
