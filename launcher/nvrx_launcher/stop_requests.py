"""Who wants this agent to stop before the job is over: a signal, or the scheduler's time limit."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator, Callable

import anyio

from nvrx_async.rounds.events import Event, LeaveRequested, StopWanted
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.config import WorkersConfig
from nvrx_launcher.current_life import CurrentLife
from nvrx_launcher.ranks import NodeRanks
from nvrx_launcher.terminal import terminal_size
from nvrx_launcher.time_limit import ending_by, time_limit

Tell = Callable[[str], None]


class StopRequests:
    """Passes a wish to stop on to the life of now, and to each that begins after it. Signals for ranks go to them."""

    def __init__(
        self, workers: WorkersConfig, life: CurrentLife, ranks: NodeRanks, *, say: Tell, warn: Tell
    ) -> None:
        self._workers = workers
        self._life = life
        self._ranks = ranks
        self._say = say
        self._warn = warn
        self._leave: LeaveRequested | None = None
        self._stop_wanted: StopWanted | None = None

    @property
    def leave(self) -> LeaveRequested | None:
        """The signal that made this agent leave, if one has."""
        return self._leave

    def repeat(self, tell: Callable[[Event], None]) -> None:
        """Tell a life that begins what came when the one before had ended already."""
        if self._leave is not None:
            tell(self._leave)
        if self._stop_wanted is not None:
            tell(self._stop_wanted)

    async def serve_limit(self) -> None:
        """Ask for a stop of the whole job before the scheduler ends it; what the ranks need for that is theirs."""
        workers = self._workers
        limit = time_limit(workers.end_unix_s, workers.limit_margin_s, workers.stop_timeout_s, time.time())
        if limit is None:
            return
        await anyio.sleep_until(anyio.current_time() + limit.after_s)
        self._stop_wanted = limit.wanted
        self._life.tell(limit.wanted)

    async def serve_signals(
        self, signals: AsyncIterator[signal.Signals] | None, everything: anyio.CancelScope
    ) -> None:
        """The first signal asks the job to stop, a second ends this agent and its ranks now.

        Those for the ranks are passed on and change nothing here.
        """
        if signals is None:
            self._warn(
                "started outside the main thread: signals are not handled here, nor passed on to ranks"
            )
            return
        for_ranks = self._workers.signals
        async for number in signals:
            if number in for_ranks:
                self._pass_on(number)
            elif number == signal.SIGWINCH:
                self._ranks.resize(terminal_size(sys.stdout, pty=self._workers.pty))
            elif not self._stops(number):
                everything.cancel()
                return

    def _pass_on(self, number: signal.Signals) -> None:
        passed = self._ranks.signal(number)
        told = "passed on to the ranks that handle it" if passed else "no rank runs"
        self._say(f"{number.name}: {told}")

    def _stops(self, number: signal.Signals) -> bool:
        """Whether the job can stop in its own time; False: this agent is to end now."""
        if self._leave is not None:
            self._say(f"{number.name} again: killing the ranks")
            self._ranks.kill()
            return False
        workers, unix_s = self._workers, time.time()
        grace_s = workers.grace_s(unix_s)
        ending = ending_by(number, workers.end_unix_s, unix_s, limit_near=self._stop_wanted is not None)
        self._leave = LeaveRequested(number, boottime_s() + grace_s, ending)
        if not self._life.is_led:
            self._say(f"{number.name}: stopping before this node was in the job")
            return False
        self._say(f"{number.name}: stopping; ranks have {grace_s:.4g} s (again to kill them now)")
        self._life.tell(self._leave)
        return True
