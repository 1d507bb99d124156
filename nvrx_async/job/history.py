"""A job as its own log folder remembers it (`history.jsonl`): for when etcd is gone. Pure: lines in, rounds out.

The file is one node's: verdicts and outcome are the job's, ends of ranks and seats are this node's alone (of all
nodes that share the folder, where they do). What nodes report, it has of all where its agent led a small job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from nvrx_async.job.codec import decode
from nvrx_async.job.errors import RecordError
from nvrx_async.job.job_events import EventKind, JobEvent, in_order, of_command, of_node, of_round
from nvrx_async.job.keys import AttemptKeys, Told
from nvrx_async.job.records import (
    Assignment,
    Command,
    CommandPhase,
    Done,
    End,
    Fault,
    Interrupt,
    JobSpec,
    Node,
    Outcome,
    Phase,
    RankEnd,
    Round,
    Seat,
    WorldShard,
)
from nvrx_async.job.round_record import RoundRecord, assembled
from nvrx_async.job.status import (
    JobState,
    JobStatus,
    NodeStatus,
    Role,
    is_fault,
    last_asked_of,
    last_fault_of,
    rank_statuses,
    state_of_outcome,
)

T = TypeVar("T")


@dataclass(slots=True)
class _Attempt:
    """What was read of one attempt."""

    number: int
    spec: JobSpec | None = None
    nodes: list[Node] = field(default_factory=list)
    assignments: dict[int, dict[str, Assignment]] = field(default_factory=dict)
    verdicts: dict[int, End] = field(default_factory=dict)
    ends: dict[int, dict[int, RankEnd]] = field(default_factory=dict)
    opened: dict[int, Round] = field(default_factory=dict)
    interrupts: dict[int, Interrupt] = field(default_factory=dict)
    reports: dict[int, dict[str, Fault]] = field(default_factory=dict)
    done: dict[int, dict[str, Done]] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    outages: list[JobEvent] = field(default_factory=list)
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """The last attempt that a history file knows, and what happened in it. `unread`: lines that were no records.

    `status`: how the job stood when the last line was written. `outage`: what etcd's silence meant by then.
    """

    run_id: str
    attempt: int
    rounds: tuple[RoundRecord, ...]
    events: tuple[JobEvent, ...]
    outcome: Outcome | None
    status: JobStatus
    unread: int = 0
    outage: str = ""


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
    events += attempt.outages
    told = in_order(tuple(events))
    status = _status(run_id, attempt, rounds, told[-1].at_utc if told else "")
    away = attempt.outages[-1] if attempt.outages and attempt.outcome is None else None
    outage = away.sentence if away is not None and away.bad else ""
    return Past(run_id, attempt.number, rounds, told, attempt.outcome, status, unread, outage)


def _added(attempt: _Attempt, raw: dict[str, Any]) -> _Attempt:
    kind = raw.pop("record")
    if kind == "registered":
        number = raw.pop("attempt")
        if number != attempt.number:
            attempt = _Attempt(number)
        attempt.nodes.append(_read(Node, raw))
    elif kind == "assignment":
        assignment = _read(Assignment, raw)
        attempt.assignments.setdefault(assignment.round, {})[assignment.seat.node_id] = assignment
    elif kind == "spec":
        attempt.spec = _read(JobSpec, raw)
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
    elif kind == "outage":
        away = bool(raw["away"])
        attempt.outages.append(JobEvent(raw["at_utc"], EventKind.ETCD, str(raw["sentence"]), bad=away))
    elif kind == "outcome" and raw.pop("attempt", attempt.number) == attempt.number:
        attempt.outcome = _read(Outcome, raw)
    elif kind in _TOLD and raw.pop("attempt") == attempt.number:
        _tell(attempt, _TOLD[kind], raw)
    return attempt


_TOLD = {told.value: told for told in Told}


def _tell(attempt: _Attempt, told: Told, raw: dict[str, Any]) -> None:
    """A record of etcd that tells of moments; the same one may stand in the file more than once."""
    if told is Told.ROUND:
        opened = _read(Round, raw)
        attempt.opened[opened.number] = opened
        return
    number = raw.pop("round")
    if told is Told.INTERRUPT:
        attempt.interrupts[number] = _read(Interrupt, raw)
    elif told is Told.REPORT:
        report = _read(Fault, raw)
        attempt.reports.setdefault(number, {})[report.node_id] = report
    else:
        done = _read(Done, raw)
        attempt.done.setdefault(number, {})[done.node_id] = done


def _read(cls: type[T], raw: dict[str, Any]) -> T:
    return decode(cls, "a line of history.jsonl", orjson.dumps(raw))


def _numbers(attempt: _Attempt) -> list[int]:
    last = [attempt.outcome.round] if attempt.outcome else []
    return sorted({*attempt.assignments, *attempt.verdicts, *attempt.ends, *attempt.opened, *last})


def _round(run_id: str, attempt: _Attempt, number: int) -> RoundRecord:
    seated = attempt.assignments.get(number, {})
    seats = tuple(sorted((one.seat for one in seated.values()), key=lambda seat: seat.first_rank))
    before = attempt.reports.get(number - 1, {})
    record = assembled(
        AttemptKeys(run_id, attempt.number),
        number,
        now_round=attempt.opened.get(number),
        verdict=attempt.verdicts.get(number),
        before=attempt.verdicts.get(number - 1),
        outcome=attempt.outcome,
        interrupt=attempt.interrupts.get(number),
        reports=_reports(attempt, number, seats),
        done=attempt.done.get(number, {}).values(),
        joins=[report.join for report in before.values() if report.join is not None],
        world=[WorldShard(0, 1, seats, ())] if seats else (),
    )
    world_size = next((one.world_size for one in seated.values()), 0)
    node_count = next((one.group_world_size for one in seated.values()), record.node_count)
    over = attempt.outcome is not None or number in attempt.verdicts or number < max(_numbers(attempt))
    phase = Phase.ENDED if over else Phase.RUNNING  # it ran when the last line was written
    return replace(record, world_size=record.world_size or world_size, node_count=node_count, phase=phase)


def _reports(attempt: _Attempt, number: int, seats: tuple[Seat, ...]) -> list[Fault]:
    """What nodes reported, with the ends of ranks that their agents noted one by one."""
    told, ends = attempt.reports.get(number, {}), attempt.ends.get(number, {})
    by_rank = {seat.first_rank + place: seat for seat in seats for place in range(seat.slots)}
    unseated = attempt.nodes[-1].node_id if attempt.nodes else "this node"
    found: dict[str, dict[int, RankEnd]] = {
        report.node_id: {end.rank: end for end in report.ends} for report in told.values()
    }
    for rank, end in ends.items():
        name = by_rank[rank].node_id if rank in by_rank else unseated
        found.setdefault(name, {})[rank] = end
    hosts = {seat.node_id: seat.host for seat in seats}
    return [
        replace(
            told.get(name) or Fault(name, "", hosts.get(name, ""), ()),
            ends=tuple(of_node[rank] for rank in sorted(of_node)),
        )
        for name, of_node in found.items()
    ]


def _status(run_id: str, attempt: _Attempt, rounds: tuple[RoundRecord, ...], last_utc: str) -> JobStatus:
    """How the job stood: by its outcome, else as one whose last state nobody knows any more."""
    spec, outcome = attempt.spec, attempt.outcome
    newest = rounds[-1] if rounds else None
    seats = {seat.node_id: seat for seat in newest.seats} if newest is not None else {}
    living = {node.node_id: node for node in attempt.nodes}
    nodes = tuple(
        NodeStatus(
            node_id,
            node.host,
            Role.MEMBER if node_id in seats else Role.WAITING,
            node.slots,
            seats[node_id].group_rank if node_id in seats else -1,
            seats[node_id].first_rank if node_id in seats else -1,
            registered_utc=node.registered_utc,
            incarnation=node.incarnation,
            log_dir=str(node.extra.get("log_dir", "")),
        )
        for node_id, node in living.items()
    )
    verdicts = [attempt.verdicts[number] for number in sorted(attempt.verdicts)]
    billed = [end for end in verdicts if is_fault(end)]
    # The round's own account: not every fault is billed. Histories of earlier versions know the verdicts only.
    spent = attempt.opened[max(attempt.opened)].ledger if attempt.opened else None
    return JobStatus(
        run_id=run_id,
        attempt=attempt.number,
        state=state_of_outcome(outcome) if outcome is not None else JobState.UNKNOWN,
        since_utc=outcome.decided_utc if outcome is not None else last_utc,
        created_utc=min((node.registered_utc for node in attempt.nodes), default=""),
        command=spec.command if spec else (),
        round=newest.number if newest is not None else 0,
        min_nodes=spec.min_nodes if spec else 0,
        max_nodes=spec.max_nodes if spec else 0,
        nodes_present=max(len(living), newest.node_count if newest else 0) if outcome is None else 0,
        world_size=newest.world_size if newest is not None else 0,
        restarts=spent.restarts if spent else sum(not end.root.kind.is_membership for end in billed),
        max_restarts=spec.max_restarts if spec else 0,
        lost_nodes=spent.membership if spent else sum(end.root.kind.is_membership for end in billed),
        last_fault=last_fault_of(outcome, billed[-1] if billed else None),
        last_asked=last_asked_of(verdicts[-1] if verdicts else None),
        outcome=outcome,
        nodes=nodes if outcome is None else (),
        ranks=rank_statuses(newest, {}) if newest is not None and newest.ends else (),
        commands=tuple(one for one in attempt.commands.values() if one.phase is CommandPhase.ASKED),
    )
