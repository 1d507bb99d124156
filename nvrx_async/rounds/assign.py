"""Which agent gets which ranks. Survivors keep their place; newcomers take the missing ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nvrx_async.job.records import Join, Node, Seat


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that joined. `since` is the revision of its registration: who came first."""

    node: Node
    join: Join
    since: int


@dataclass(frozen=True, slots=True)
class Places:
    """Candidates by group rank, and those who wait as spares. `misfit` says why a place stayed empty."""

    seated: tuple[Candidate, ...]
    spares: tuple[Candidate, ...]
    misfit: str = ""


def place(candidates: Sequence[Candidate], previous: Sequence[Seat], max_nodes: int) -> Places:
    """Give group ranks to at most `max_nodes` candidates.

    A survivor keeps its group rank if it is below the new size, survivors with higher ones fill the gaps in
    order, newcomers take what is left. A newcomer takes a lost member's place only with as many slots, so
    that the ranks of all others stay what they were.
    """
    old = {seat.node_id: seat for seat in previous}
    survivors = sorted(
        (one for one in candidates if one.node.node_id in old),
        key=lambda one: old[one.node.node_id].group_rank,
    )
    newcomers = sorted((one for one in candidates if one.node.node_id not in old), key=lambda one: one.since)
    size = min(len(candidates), max_nodes)
    misfit = ""
    while True:
        kept, waiting = survivors[:size], newcomers[: max(0, size - len(survivors))]
        places = _keep(kept, old, size)
        left = _fill(places, sorted(waiting, key=_wish), newcomers, previous)
        if left is None:
            break
        misfit, size = left, size - 1
    seated = tuple(one for one in places if one is not None)
    taken = {one.node.node_id for one in seated}
    spares = tuple(one for one in (*survivors, *newcomers) if one.node.node_id not in taken)
    return Places(seated, spares, misfit)


def _keep(survivors: Sequence[Candidate], old: dict[str, Seat], size: int) -> list[Candidate | None]:
    places: list[Candidate | None] = [None] * size
    displaced = []
    for one in survivors:
        rank = old[one.node.node_id].group_rank
        if rank < size:
            places[rank] = one
        else:
            displaced.append(one)
    gaps = (rank for rank in range(size) if places[rank] is None)
    for one, rank in zip(displaced, gaps, strict=False):
        places[rank] = one
    return places


def _fill(
    places: list[Candidate | None],
    chosen: Sequence[Candidate],
    newcomers: Sequence[Candidate],
    previous: Sequence[Seat],
) -> str | None:
    """Put newcomers into the gaps; return why one stays empty, None when all are filled."""
    slots_before = {seat.group_rank: seat.slots for seat in previous}
    free = {one.node.node_id: one for one in (*chosen, *newcomers)}
    for rank, taken in enumerate(places):
        if taken is not None:
            continue
        slots = slots_before.get(rank)
        fitting = next((one for one in free.values() if slots is None or one.node.slots == slots), None)
        if fitting is None:
            others = ", ".join(f"{one.node.node_id} has {one.node.slots}" for one in free.values())
            return f"group rank {rank} needs a node with {slots} slots ({others or 'nobody waits'})"
        places[rank] = free.pop(fitting.node.node_id)
    return None


def seats(places: Sequence[Candidate]) -> tuple[Seat, ...]:
    """Seats in order of group rank; ranks are counted through."""
    made, first_rank = [], 0
    for group_rank, one in enumerate(places):
        node = one.node
        made.append(Seat(node.node_id, node.incarnation, node.host, group_rank, first_rank, node.slots))
        first_rank += node.slots
    return tuple(made)


def _wish(one: Candidate) -> tuple[bool, int, list[tuple[int, str]]]:
    order = one.node.order
    return (order is None, order or 0, natural(one.node.node_id))


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which node-2 comes before node-10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
