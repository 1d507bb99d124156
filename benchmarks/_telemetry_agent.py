"""`nvrx-launch` with clocks beside it: `_telemetry_agent.py FILE …` tells when it renewed, how late timers were.

With NVRX_BENCH_OWN in the environment also how much CPU time the loop spent in calls of the telemetry's own; the
timers are for NVRX_BENCH_TIMERS only, since they use more CPU than the whole agent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from nvrx_launcher import agent, launch_cli
from nvrx_launcher.live import LiveAnswers
from nvrx_launcher.tracing import Traced
from nvrx_launcher.tracing_drivers import Witness
from nvrx_launcher.tracing_lookout import Lookout
from nvrx_launcher.tracing_off import Tracing

TICK_S = 0.005
sent_s: list[float] = []
late_s: list[float] = []
real_main, real_renewed = agent._main, LiveAnswers.renewed  # noqa: SLF001 - a benchmark's look inside


async def tick() -> None:
    """How late the event loop is: whoever keeps it from its work keeps a renewal from being sent."""
    while True:
        due_s = time.monotonic() + TICK_S
        await anyio.sleep(TICK_S)
        late_s.append(time.monotonic() - due_s)


async def watched_main(*arguments: Any) -> int:
    async with anyio.create_task_group() as tasks:
        if os.environ.get("NVRX_BENCH_TIMERS"):
            tasks.start_soon(tick)
        code = await real_main(*arguments)
        tasks.cancel_scope.cancel()
    return code


def renewed(self: LiveAnswers, at_s: float) -> None:
    sent_s.append(at_s)
    real_renewed(self, at_s)


class Own:
    """CPU time of the loop's thread in calls that are not inside each other."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self._inside = False
        self._thread = threading.get_ident()

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **more: Any) -> Any:
            if self._inside or threading.get_ident() != self._thread:
                return call(*arguments, **more)
            self._inside, began_ns = True, time.thread_time_ns()
            try:
                return call(*arguments, **more)
            finally:
                self.spent_ns += time.thread_time_ns() - began_ns
                self._inside = False

        return counting


own = Own()
if os.environ.get("NVRX_BENCH_OWN"):
    rare = {"serve", "close", "watch_kind", "attend", "life", "store", "ranks"}
    names = {name for kind in (Tracing, Witness) for name in vars(kind) if not name.startswith("_")} - rare
    for kind, methods in ((Traced, names), (Lookout, {"scopes", "observe", "decide"})):
        for method in methods:
            setattr(kind, method, own.counted(getattr(kind, method)))
agent._main, LiveAnswers.renewed = watched_main, renewed  # type: ignore[method-assign]  # noqa: SLF001 - as above
code = launch_cli.main(sys.argv[2:])
Path(sys.argv[1]).write_text(json.dumps({"sent_s": sent_s, "late_s": late_s, "own_ns": own.spent_ns}))
sys.exit(code)
