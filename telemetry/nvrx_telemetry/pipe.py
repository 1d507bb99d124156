"""Spans wait here for the collector, beside everything else: one thread, a bounded queue, no word lost twice.

Whoever has a span puts it and goes on. The thread loads OpenTelemetry, gathers, sends, and keeps what a
collector did not take; when the queue is full the oldest go, and are counted. Ending waits for a bounded time only.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from nvrx_telemetry.model import FinishedSpan

LAST_SEND_S = 1.2
"""How long an end waits for the collector; then what is left is given up."""
GIVE_UP_S = 0.3


class Sender(Protocol):
    """Sends spans to a collector. Blocks."""

    def send(self, spans: Sequence[FinishedSpan]) -> bool:
        """Send; False if the collector did not take them and may do so later."""

    def abort(self) -> None:
        """End a `send` that another thread is in, soon, and refuse later ones."""


class SpanPipe:
    """See the module. `connect` is called by the thread; `failed` and `worked` hear of each attempt to send."""

    def __init__(
        self,
        connect: Callable[[], Sender],
        *,
        delay_s: float,
        queue: int,
        batch: int,
        worked: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._connect, self._delay_s, self._batch = connect, delay_s, batch
        self._worked, self._failed = worked, failed
        self._queue: deque[FinishedSpan] = deque(maxlen=queue)
        self._full_enough = queue - queue // 8
        self._changed = threading.Condition()
        self._flush_at_s = math.inf
        self._closing = False
        self._sender: Sender | None = None
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="nvrx-spans", daemon=True)
        self._thread.start()

    def put(self, span: FinishedSpan, *, yields: bool = False) -> None:
        """Have a span sent. Never waits. One that `yields` is dropped where an eighth of the queue is left only."""
        with self._changed:
            if yields and len(self._queue) >= self._full_enough:
                self.dropped += 1
                return
            if len(self._queue) == self._queue.maxlen:
                self.dropped += 1
            self._queue.append(span)
            if len(self._queue) == 1 or len(self._queue) >= self._batch:
                self._changed.notify()

    def flush(self, within_s: float = 0.0) -> None:
        """Have all that is here sent after `within_s` at the latest, if there is any. Does not wait for it."""
        at_s = time.monotonic() + within_s
        with self._changed:
            # Else it is woken in time, or for nothing: each waking is in the way of a restart.
            if self._queue and at_s < self._flush_at_s:
                self._flush_at_s = at_s
                self._changed.notify()

    def close(self) -> bool:
        """Send what is left; False if it was given up. Blocks for LAST_SEND_S + GIVE_UP_S at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(LAST_SEND_S)
        if self._thread.is_alive() and self._sender is not None:
            # An exporter's own end may wait as its sending does.
            threading.Thread(target=self._sender.abort, name="nvrx-spans-abort", daemon=True).start()
            self._thread.join(GIVE_UP_S)
        return not self._thread.is_alive() and not self._queue

    def _run(self) -> None:
        try:
            while batch := self._gathered():
                # Not before there is something to send: the imports would slow the start of the job.
                self._sender = self._sender or self._connect()
                if not self._deliver(self._sender, batch):
                    break
            if self._sender is not None:
                self._sender.abort()
        except Exception as error:  # noqa: BLE001 - a helper's outermost frame: it is told, training goes on
            self._failed(f"{type(error).__name__}: {error}")

    def _deliver(self, sender: Sender, batch: list[FinishedSpan]) -> bool:
        """Send one batch, or keep it for later; False at the end."""
        last, due_s = self._closing, self._flush_at_s
        if sender.send(batch):
            self._worked()
            return True
        self._failed("")
        with self._changed:
            room = (self._queue.maxlen or 0) - len(self._queue)
            kept = batch[-room:] if room else []
            self.dropped += len(batch) - len(kept)
            self._queue.extendleft(reversed(kept))
            if not self._closing:
                if self._flush_at_s == due_s:  # what was asked for while it was sent still counts
                    self._flush_at_s = math.inf
                self._wait(time.monotonic() + self._delay_s, lambda: self._closing)
            return not last

    def _gathered(self) -> list[FinishedSpan]:
        """A batch, once there is reason to send one; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            until_s = time.monotonic() + self._delay_s
            self._wait(until_s, lambda: self._closing or len(self._queue) >= self._batch)
            batch = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            if not self._queue:
                self._flush_at_s = math.inf
            return batch

    def _wait(self, until_s: float, enough: Callable[[], bool]) -> None:
        """Until it is enough, but no longer than until then, or until a flush is due that is asked for meanwhile."""
        while not enough():
            left_s = min(until_s, self._flush_at_s) - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)
