"""How an agent's garbage is collected: what it was started with lives as long as it does."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 20_000
"""So many new objects are looked through at once: a coordinator decodes some 10,000 at each restart of 1,000 nodes."""


@contextmanager
def spared_collector() -> Iterator[None]:
    """Leave all that is loaded out of every collection, and collect less often; afterwards all is as it was.

    A full collection looks through all modules, some 30 ms, and came at the worst of times: while a thousand
    reports are read. An agent makes few cycles, so garbage goes without it. In a thread of somebody else's process
    the collector is theirs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
