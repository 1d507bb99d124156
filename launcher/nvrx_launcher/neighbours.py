"""What ranks of other nodes are in the middle of: asked of their agents where a rank here is late.

An agent that does not answer at once excuses nobody. So that a busy one may, the monitor asks a moment before it must
know, too; answers that come late are kept, and what an agent said holds for some seconds.

Where a world is not known to its agents (`promises.MOST_ASKED`) the agent of rank 0 alone is asked, whose address
stands in each assignment: what one rank does for all others is rank 0's nearly always. So that a thousand agents do
not ask it in the same moment each has another distance from its deadline, and what was said then is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from nvrx_async.hang.monitor import ASK_AHEAD_S
from nvrx_async.hang.patience import OpenSection, from_wire
from nvrx_async.job.records import FIRST_PROBE, Assignment
from nvrx_async.probe import ProbeError, ask
from nvrx_async.rounds.promises import MOST_ASKED, Peer

SECTIONS = "sections"
"""Kind of the question. Its payload names the round; the answer's `sections` are as `patience.to_wire` has them."""

WITHIN_S = 0.05
"""A hang is to be declared within 100 ms after its deadline."""
LATEST_S = 0.8
"""How long an answer is waited for that comes too late for this question, and may be in time for the next."""
HOLDS_S = 2.5
"""How long an answer counts for an agent that is silent since."""
SPREAD_S = 5.0
"""Over so long a time the agents of a large world ask the one of rank 0."""


def first_probe(assignment: Assignment) -> str:
    """Where the agent of rank 0 answers; empty if that is this one, or is not known."""
    return str(assignment.extra.get(FIRST_PROBE, "")) if assignment.seat.group_rank else ""


def ask_ahead_s(assignment: Assignment) -> float:
    """So long before a deadline this agent asks for the first time."""
    nodes = assignment.group_world_size
    return ASK_AHEAD_S + (SPREAD_S * assignment.seat.group_rank / nodes if nodes > MOST_ASKED else 0.0)


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

    async def sections(self, number: int, first: str = "") -> tuple[OpenSection, ...]:
        """Open sections of ranks of other nodes in this round, as far as their agents answer at once.

        `first`: the address to ask where the agents of the round are not known, empty for none.
        """
        peers = {peer.incarnation: peer for peer in self._peers(number) if peer.probe}
        if peers or not first:
            return await self._asked(number, peers, HOLDS_S)
        only = {first: Peer("", first, first)}
        holds_s = HOLDS_S + SPREAD_S
        return self._fresh(number, only, self._clock() - holds_s) or await self._asked(number, only, holds_s)

    async def _asked(self, number: int, peers: Mapping[str, Peer], holds_s: float) -> tuple[OpenSection, ...]:
        """What these agents say, or have said a moment ago."""
        oldest_s = self._clock() - holds_s
        waiting = _Waiting(set(peers))
        if self._tasks is not None and peers:
            for peer in peers.values():
                self._tasks.start_soon(self._ask, number, peer, waiting)
            with anyio.move_on_after(self._within_s):
                await waiting.all_answered.wait()
        self._said = {one: told for one, told in self._said.items() if one in peers}
        return self._fresh(number, peers, oldest_s)

    def _fresh(self, number: int, peers: Mapping[str, Peer], oldest_s: float) -> tuple[OpenSection, ...]:
        said = [told for one, told in self._said.items() if one in peers]
        fresh = [told.sections for told in said if told.round == number and told.at_s >= oldest_s]
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
