"""What ranks of other nodes are in the middle of: asked of their agents where a rank here is late.

An agent that does not answer at once excuses nobody. So that a busy one may, the monitor asks a moment before it must
know, too; answers that come late are kept, and what an agent said holds for some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from nvrx_async.hang.patience import OpenSection, from_wire
from nvrx_async.probe import ProbeError, ask
from nvrx_async.rounds.promises import Peer

SECTIONS = "sections"
"""Kind of the question. Its payload names the round; the answer's `sections` are as `patience.to_wire` has them."""

WITHIN_S = 0.05
"""A hang is to be declared within 100 ms after its deadline."""
LATEST_S = 0.8
"""How long an answer is waited for that comes too late for this question, and may be in time for the next."""
HOLDS_S = 2.5
"""How long an answer counts for an agent that is silent since."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What an agent said of a round, asked at `at_s`."""

    round: int
    at_s: float
    sections: tuple[OpenSection, ...]


class Neighbours:
    """Asks the other agents of a round. `peers`: who they are; `clock`: seconds of CLOCK_MONOTONIC."""

    def __init__(
        self,
        peers: Callable[[int], Iterable[Peer]],
        clock: Callable[[], float],
        token: str | None,
        *,
        within_s: float = WITHIN_S,
    ) -> None:
        self._peers = peers
        self._clock = clock
        self._token = token
        self._within_s = within_s
        self._said: dict[str, _Said] = {}
        self._tasks: TaskGroup | None = None

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Ask whenever that is wanted, until cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    async def sections(self, number: int) -> tuple[OpenSection, ...]:
        """Open sections of ranks of other nodes in this round, as far as their agents answer at once."""
        oldest_s = self._clock() - HOLDS_S
        peers = {peer.incarnation: peer for peer in self._peers(number) if peer.probe}
        waiting = _Waiting(set(peers))
        if self._tasks is not None and peers:
            for peer in peers.values():
                self._tasks.start_soon(self._ask, number, peer, waiting)
            with anyio.move_on_after(self._within_s):
                await waiting.all_answered.wait()
        said = {one: told for one, told in self._said.items() if one in peers}
        self._said = said
        fresh = [told.sections for told in said.values() if told.round == number and told.at_s >= oldest_s]
        return tuple(section for sections in fresh for section in sections)

    async def _ask(self, number: int, peer: Peer, waiting: _Waiting) -> None:
        asked_s = self._clock()
        try:
            answer = await ask(peer.probe, SECTIONS, {"round": number}, LATEST_S, token=self._token)
            found = tuple(from_wire(raw, asked_s) for raw in _listed(answer))
        except (ProbeError, ValueError):
            pass  # silent, in another round, or of another version: excuses nobody
        else:
            known = self._said.get(peer.incarnation)
            if known is None or known.at_s < asked_s:
                self._said[peer.incarnation] = _Said(number, asked_s, found)
        waiting.answered(peer.incarnation)


class _Waiting:
    """Who has not answered a question yet."""

    def __init__(self, asked: set[str]) -> None:
        self._asked = asked
        self.all_answered = anyio.Event()

    def answered(self, incarnation: str) -> None:
        self._asked.discard(incarnation)
        if not self._asked:
            self.all_answered.set()


def _listed(answer: Mapping[str, Any]) -> list[Any]:
    found = answer.get("sections")
    return found if isinstance(found, list) else []
