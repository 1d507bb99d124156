"""Short turns at the interpreter for threads that work beside an event loop, while they do."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

SWITCH_S = 0.0005


class Turns:
    """`with turns:` around what a thread does that takes long in Python: imports, encoding.

    The loop has the interpreter back half a millisecond after it has work, not after five: else each of the twenty
    wake-ups of a restart might wait for it. Only meanwhile, since the loop too gives way to threads that want their
    turn (gRPC has some), and the more often the more it costs: 0.3 to 0.8 ms of a restart.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working = 0
        self._usual_s = sys.getswitchinterval()

    def __enter__(self) -> None:
        with self._lock:
            self._working += 1
            sys.setswitchinterval(SWITCH_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._working -= 1
            if not self._working:
                sys.setswitchinterval(self._usual_s)
