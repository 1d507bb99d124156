"""A job as its own log folder remembers it (`history.jsonl`): for when etcd is gone. Pure: lines in, rounds out.

The file is one node's: verdicts and outcome are the job's, ends of ranks and seats are this node's alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from nvrx_async.job.codec import decode
from nvrx_async.job.errors import RecordError
from nvrx_async.job.job_events import JobEvent, in_order, of_command, of_node, of_round
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import (
    Assignment,
    Command,
    End,
    Fault,
    Node,
    Outcome,
    RankEnd,
    WorldShard,
)
from nvrx_async.job.round_record import RoundRecord, assembled

T = TypeVar("T")


@dataclass(slots=True)
class _Attempt:
    """What was read of one attempt."""

    number: int
    nodes: list[Node] = field(default_factory=list)
    assignments: dict[int, Assignment] = field(default_factory=dict)
    verdicts: dict[int, End] = field(default_factory=dict)
    ends: dict[int, dict[int, RankEnd]] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """The last attempt that a history file knows, and what happened in it. `unread`: lines that were no records."""

    run_id: str
    attempt: int
    rounds: tuple[RoundRecord, ...]
    events: tuple[JobEvent, ...]
    outcome: Outcome | None
    unread: int = 0


def past(run_id: str, lines: Iterable[bytes]) -> Past:
    """Read a history; a line that was cut short by a crash is passed over."""
    attempt, unread = _Attempt(0), 0
    for line in lines:
        if not line.strip():
            continue
        try:
            raw = orjson.loads(line)
            attempt = _added(attempt, raw)
        except (orjson.JSONDecodeError, RecordError, KeyError, TypeError, AttributeError):
            unread += 1
    rounds = tuple(_round(run_id, attempt, number) for number in _numbers(attempt))
    events = [event for record in rounds for event in of_round(record)]
    events += [of_node(node) for node in attempt.nodes]
    events += [event for command in attempt.commands.values() for event in of_command(command)]
    return Past(run_id, attempt.number, rounds, in_order(tuple(events)), attempt.outcome, unread)


def _added(attempt: _Attempt, raw: dict[str, Any]) -> _Attempt:
    kind = raw.pop("record")
    if kind == "registered":
        number = raw.pop("attempt")
        if number != attempt.number:
            attempt = _Attempt(number)
        attempt.nodes.append(_read(Node, raw))
    elif kind == "assignment":
        assignment = _read(Assignment, raw)
        attempt.assignments[assignment.round] = assignment
    elif kind == "end":
        verdict = _read(End, raw)
        attempt.verdicts[verdict.number] = verdict
    elif kind == "rank_end":
        number = raw.pop("round")
        end = _read(RankEnd, raw)
        attempt.ends.setdefault(number, {})[end.rank] = end
    elif kind == "command":
        name = raw.pop("id")
        attempt.commands[name] = _read(Command, raw)
    elif kind == "outcome":
        attempt.outcome = _read(Outcome, raw)
    return attempt


def _read(cls: type[T], raw: dict[str, Any]) -> T:
    return decode(cls, "a line of history.jsonl", orjson.dumps(raw))


def _numbers(attempt: _Attempt) -> list[int]:
    last = [attempt.outcome.round] if attempt.outcome else []
    return sorted({*attempt.assignments, *attempt.verdicts, *attempt.ends, *last})


def _round(run_id: str, attempt: _Attempt, number: int) -> RoundRecord:
    seated, ends = attempt.assignments.get(number), attempt.ends.get(number, {})
    seats = (seated.seat,) if seated else ()
    node_id = seated.seat.node_id if seated else attempt.nodes[-1].node_id if attempt.nodes else "this node"
    host = seated.seat.host if seated else ""
    report = Fault(node_id, "", host, tuple(ends[rank] for rank in sorted(ends)))
    return assembled(
        AttemptKeys(run_id, attempt.number),
        number,
        verdict=attempt.verdicts.get(number),
        before=attempt.verdicts.get(number - 1),
        outcome=attempt.outcome,
        reports=[report] if ends else (),
        world=[WorldShard(0, 1, seats, ())] if seats else (),
    )
