"""Ranks of a running round that do not get on, before anybody calls them hung. Pure: live answers in, facts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_async.job.live import LiveNode, LiveRank
from nvrx_async.job.records import Node

SILENT_S = 10.0
"""A rank that took so long is spoken of; or a quarter of what it may take, if that is less."""
_PART = 0.25


@dataclass(frozen=True, slots=True)
class Silent:
    """A rank that does not get on. `what`: a clause; it goes on for `since_s`.

    `due_in_s`: so long until it is taken for hung if nothing comes; 0 where that is over and it is waited for all the
    same; None where it has no deadline, as without `--hang-timeout` or without reports.
    """

    round: int
    rank: int
    node_id: str
    host: str
    what: str
    since_s: float
    step: int | None = None
    section: str = ""
    due_in_s: float | None = None


def silent_ranks(
    answers: Mapping[str, LiveNode], nodes: Mapping[str, Node], number: int
) -> tuple[Silent, ...]:
    """Those of this round, in a section of their own first: others may wait for them; then the longest silent."""
    found = [
        silent
        for node_id, answer in answers.items()
        if answer.round == number
        for rank in answer.ranks
        if (silent := _silent(number, rank, node_id, nodes[node_id].host if node_id in nodes else ""))
    ]
    return tuple(sorted(found, key=lambda one: (not one.section, -one.since_s, one.rank)))


def _silent(number: int, rank: LiveRank, node_id: str, host: str) -> Silent | None:
    if rank.state in ("ended", "done"):
        return None
    if rank.late_since_s is not None and rank.late_in_s is not None:
        enough_s = min(SILENT_S, (rank.late_since_s + rank.late_in_s) * _PART)
        if rank.late_since_s < enough_s:
            return None
        what, since_s, due_in_s = rank.late_by, rank.late_since_s, max(rank.late_in_s, 0.0)
        return Silent(number, rank.rank, node_id, host, what, since_s, rank.step, rank.section, due_in_s)
    if rank.beat_age_s is None or rank.beat_age_s < SILENT_S:
        return None
    what = f"is in section {rank.section}" if rank.section else "reported nothing more"
    since_s = rank.section_s if rank.section else rank.beat_age_s
    return Silent(number, rank.rank, node_id, host, what, since_s, rank.step, rank.section)
