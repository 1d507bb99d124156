"""Waiting for a step, which stands in the memory of the ranks alone: their agents are asked once, and answer then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import anyio

from nvrx_async.job.live import REACHED, REACHED_WITHIN_S
from nvrx_async.job.status import JobStatus

Ask: TypeAlias = Callable[[str, str, Mapping[str, Any], float], Awaitable[Mapping[str, Any]]]
"""Asks the agent at an address a question (kind, payload) within seconds; an `OSError` or what `silence` names
says that there is no answer."""

ASKED_AT_ONCE = 64
_AGAIN_S, _LONGEST_S = 0.2, 5.0
_LEEWAY_S = 5.0


async def until_reached(ask: Ask, silence: tuple[type[Exception], ...], status: JobStatus, step: int) -> None:
    """Return when every agent whose ranks were behind has said that they have come to the step.

    An agent that gives no answer is asked again, more and more seldom. Where no rank runs this never returns.
    """
    behind = {rank.node_id for rank in status.ranks if rank.step is None or rank.step < step}
    addresses = [node.probe for node in status.nodes if node.node_id in behind and node.probe]
    if not addresses:
        await anyio.sleep_forever()
    limiter = anyio.CapacityLimiter(ASKED_AT_ONCE)
    payload = {"round": status.round, "step": step, "within_s": REACHED_WITHIN_S}

    async with anyio.create_task_group() as tasks:
        for address in addresses:
            tasks.start_soon(_come, ask, silence, limiter, address, payload)


async def _come(
    ask: Ask,
    silence: tuple[type[Exception], ...],
    limiter: anyio.CapacityLimiter,
    address: str,
    payload: Mapping[str, Any],
) -> None:
    again_s = _AGAIN_S
    while True:
        try:
            async with limiter:  # all have to come: the order in which they are asked costs no time
                answer = await ask(address, REACHED, payload, REACHED_WITHIN_S + _LEEWAY_S)
        except silence:  # not there yet, not there any more, or another version: the caller looks at changes
            await anyio.sleep(again_s)
            again_s = min(2 * again_s, _LONGEST_S)
        else:
            if answer.get("reached"):
                return
            again_s = _AGAIN_S
