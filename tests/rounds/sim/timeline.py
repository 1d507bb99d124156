"""Model time: one queue of calls, ordered by time and then by age; the same seed gives the same run."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Call = Callable[[], None]


@dataclass(order=True, slots=True)
class Timer:
    """A call that is due at `at_s` (model time), unless it was cancelled."""

    at_s: float
    serial: int
    call: Call = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class Timeline:
    """The only clock and the only source of chance of a model."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.random = random.Random(seed)
        self._queue: list[Timer] = []
        self._serial = 0
        self.slow = 0.03

    def at(self, when_s: float, call: Call) -> Timer:
        """Call at a moment; one that is past means now."""
        self._serial += 1
        timer = Timer(max(when_s, self.now_s), self._serial, call)
        heapq.heappush(self._queue, timer)
        return timer

    def after(self, delay_s: float, call: Call) -> Timer:
        """Call after a delay."""
        return self.at(self.now_s + delay_s, call)

    def run(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until a moment or until `stop`."""
        while self._queue and self._queue[0].at_s <= until_s:
            timer = heapq.heappop(self._queue)
            if timer.cancelled:
                continue
            self.now_s = timer.at_s
            timer.call()
            if stop():
                return
        self.now_s = max(self.now_s, until_s)

    def latency_s(self) -> float:
        """One way through a network: mostly short, the share `slow` of them long."""
        if self.random.random() < self.slow:
            return self.random.uniform(0.05, 0.8)
        return self.random.uniform(0.0005, 0.01)
