"""The last attempt in a job's log folder, as far as an agent needs it whose etcd knows nothing of the job. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from nvrx_async.job.codec import decode
from nvrx_async.job.errors import RecordError
from nvrx_async.job.records import Assignment, JobSpec, Node

LAUNCH_ID = "launch_id"
"""Key of the history's lines of kind `spec`: which launch by a scheduler it was."""
_KINDS = (b"registered", b"spec", b"round", b"assignment", b"outcome")
_BEGINS = tuple(b'{"record":"%s",' % kind for kind in _KINDS)


@dataclass(slots=True)
class LastAttempt:
    """What stands in the file of it. `nodes` and `seats`, of its round `number`, are those of agents that share it.

    `number` is -1 where no round ran, `world_size` the ranks of the last one. `over`: it has its outcome.
    """

    attempt: int
    spec: JobSpec | None = None
    launch_id: str | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    seats: dict[str, Assignment] = field(default_factory=dict)
    number: int = -1
    world_size: int = 0
    over: bool = False


def last_attempt(lines: Iterable[bytes]) -> LastAttempt | None:
    """Read a history; lines that a crash cut short are passed over. None where nobody ever registered."""
    found: LastAttempt | None = None
    for line in lines:
        if not line.startswith(_BEGINS):
            continue
        try:
            found = _added(found, orjson.loads(line), line)
        except (orjson.JSONDecodeError, RecordError, KeyError, TypeError):
            continue
    return found


def _added(found: LastAttempt | None, raw: dict[str, Any], line: bytes) -> LastAttempt | None:
    kind = raw["record"]
    if kind == "registered":
        if found is None or found.attempt != raw["attempt"]:
            found = LastAttempt(int(raw["attempt"]))
        node = decode(Node, kind, line)
        found.nodes[node.incarnation] = node
    elif found is None:
        return None
    elif kind == "spec":
        found.spec, found.launch_id = decode(JobSpec, kind, line), raw.get(LAUNCH_ID)
    elif kind == "outcome":
        found.over = found.over or raw.get("attempt", found.attempt) == found.attempt
    elif kind == "round":
        _in_round(found, int(raw["number"])).world_size = int(raw["world_size"])
    else:
        seat = decode(Assignment, kind, line)
        if seat.round >= found.number:
            _in_round(found, seat.round).world_size = seat.world_size
            found.seats[seat.seat.incarnation] = seat
    return found


def _in_round(found: LastAttempt, number: int) -> LastAttempt:
    if number > found.number:
        found.number = number
        found.seats = {}
    return found
