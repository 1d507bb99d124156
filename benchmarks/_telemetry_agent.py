"""`nvrx-launch` with two clocks beside it: `_telemetry_agent.py FILE …` tells when it renewed, how late timers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import anyio

from nvrx_launcher import agent, launch_cli
from nvrx_launcher.live import LiveAnswers

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
        tasks.start_soon(tick)
        code = await real_main(*arguments)
        tasks.cancel_scope.cancel()
    return code


def renewed(self: LiveAnswers, at_s: float) -> None:
    sent_s.append(at_s)
    real_renewed(self, at_s)


agent._main, LiveAnswers.renewed = watched_main, renewed  # type: ignore[method-assign]  # noqa: SLF001 - as above
code = launch_cli.main(sys.argv[2:])
Path(sys.argv[1]).write_text(json.dumps({"sent_s": sent_s, "late_s": late_s}))
sys.exit(code)
