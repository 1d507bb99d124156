"""An earlier attempt of this job that left no verdict: for how long ranks of it may live, where etcd cannot tell.

An etcd that a single node of the job runs is a new and empty one when that node comes back. The log folder of an agent
remembers what etcd has forgotten. Blocks on the disk, and for seconds at worst where it proves deaths.
"""

from __future__ import annotations

import socket
from pathlib import Path

from nvrx_async.job.records import Node
from nvrx_async.job.unfinished import LastAttempt, last_attempt
from nvrx_async.rounds.entry import restarted_by_scheduler
from nvrx_async.rounds.fencing import missing_wait_s
from nvrx_async.rounds.identity import Earlier
from nvrx_launcher.history import FILE
from nvrx_launcher.sweep import Verdict, prove_dead


def earlier_attempt(folder: Path, run_id: str, node_id: str | None, launch_id: str | None) -> Earlier | None:
    """What an attempt without a verdict makes the next one wait for; None where nothing of one can live."""
    path = folder / FILE
    try:
        with path.open("rb") as lines:
            told = last_attempt(lines)
    except OSError:
        return None  # no earlier attempt, or a disk that was lost
    if told is None or told.over or told.spec is None:
        return None
    if restarted_by_scheduler(told.launch_id, launch_id):
        return None
    dead = {node.incarnation for node in _of_here(told, node_id) if _is_dead(node, run_id)}
    gone = [seat.seat for seat in told.seats.values() if seat.seat.incarnation in dead]
    if told.number >= 0 and sum(seat.slots for seat in gone) >= told.world_size:
        return None  # the whole last world was here
    # Ranks outlive their lease by the promises of all recorded agents only, and a dead one gives none.
    recorded = bool(gone) or (told.number < 0 and bool(dead))
    return Earlier(told.attempt, missing_wait_s(told.spec, recorded=recorded), str(path))


def _of_here(told: LastAttempt, node_id: str | None) -> list[Node]:
    host = socket.gethostname()
    return [node for node in told.nodes.values() if host == node.host or node_id == node.node_id]


def _is_dead(node: Node, run_id: str) -> bool:
    return prove_dead(node, run_id).verdict is Verdict.DEAD
