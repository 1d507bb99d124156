"""What happened in a job, one event a line: read from its records. Pure.

Records hold what is decided, so each event is found in one of them, with its time; nothing is logged beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from nvrx_async.job.records import (
    REGISTERED,
    Assignment,
    Command,
    CommandPhase,
    Exclusion,
    FaultKind,
    Mark,
    Node,
)
from nvrx_async.job.round_record import RoundRecord
from nvrx_async.job.times import parsed


class EventKind(Enum):
    """What an event is about."""

    CREATED = "created"
    REGISTERED = "registered"
    OPENED = "opened"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    REPORTED = "reported"
    DONE = "done"
    JUDGED = "judged"
    COMMAND = "command"
    EXCLUDED = "excluded"
    ETCD = "etcd"
    OUTCOME = "outcome"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One thing that happened. `round` and `node_id` are None and "" where it is about none.

    `bad`: something failed.
    """

    at_utc: str
    kind: EventKind
    sentence: str
    round: int | None = None
    node_id: str = ""
    bad: bool = False


def in_order(events: Iterator[JobEvent] | tuple[JobEvent, ...]) -> tuple[JobEvent, ...]:
    """By time, and at the same moment in the order in which things follow from each other."""
    order = {kind: place for place, kind in enumerate(EventKind)}
    known = [event for event in events if parsed(event.at_utc) is not None]
    return tuple(
        sorted(
            known,
            key=lambda event: (parsed(event.at_utc), event.round or 0, order[event.kind], event.node_id),
        )
    )


def of_round(record: RoundRecord) -> Iterator[JobEvent]:
    """All that a round tells."""
    number, times = record.number, record.times
    # Where a verdict led here, its event has just said why.
    why = f": {record.why}" if record.why and record.before is None else ""
    yield JobEvent(times.opened_utc, EventKind.OPENED, f"round {number} opened{why}", number)
    if times.running_utc:
        nodes = record.node_count
        where = f" on {nodes} node{'s' * (nodes != 1)}" if nodes else ""
        yield JobEvent(
            times.running_utc,
            EventKind.RUNNING,
            f"round {number} runs: {record.world_size} rank{'s' * (record.world_size != 1)}{where}",
            number,
        )
    if record.interrupt is not None:
        said = record.interrupt
        yield JobEvent(
            said.at_utc,
            EventKind.INTERRUPTED,
            said.reason,
            number,
            said.by,
            bad=said.kind is not FaultKind.ASKED,
        )
    yield from _told(record)
    if record.level is not None and record.root is not None:
        sentence = f"round {number} ended: {record.root.sentence}; {record.level.value}: {record.decision}"
        yield JobEvent(
            times.ended_utc, EventKind.JUDGED, sentence, number, bad=record.root.kind is not FaultKind.ASKED
        )
    if record.outcome is not None:
        out = record.outcome
        how = f" ({out.ending.value.replace('_', ' ')})" if out.ending is not None else ""
        sentence = f"the job ended with exit code {out.exit_code}{how}: {out.reason}"
        yield JobEvent(out.decided_utc, EventKind.OUTCOME, sentence, number, bad=not out.success)


def _told(record: RoundRecord) -> Iterator[JobEvent]:
    """Reports and dones of nodes, at the moments they name themselves."""
    reports = {report.node_id: report for report in record.reports}
    for node in record.nodes:
        at_utc = node.at_utc.get(Mark.REPORTED, "")
        report = reports.get(node.node_id)
        if report is not None:
            failed = [end.rank for end in report.ends if end.kind is not None]
            what = f"{len(failed)} of {len(report.ends)} ranks failed or were stopped"
            yield JobEvent(
                at_utc, EventKind.REPORTED, f"{node.node_id} reported: {what}", record.number, node.node_id
            )
        elif node.node_id in record.done:
            sentence = f"all ranks of {node.node_id} finished"
            yield JobEvent(at_utc, EventKind.DONE, sentence, record.number, node.node_id)


def of_node(node: Node) -> JobEvent:
    """A registration."""
    return _registration(node.node_id, node.slots, node.registered_utc, node.succeeds)


def of_assignment(assignment: Assignment) -> JobEvent:
    """The registration that a seat was given to; it stands here when the agent is gone."""
    told, seat = assignment.extra.get(REGISTERED), assignment.seat
    about: Mapping[str, object] = told if isinstance(told, Mapping) else {}
    succeeds = str(about.get("succeeds") or "")
    return _registration(seat.node_id, seat.slots, str(about.get("at_utc", "")), succeeds)


def _registration(node_id: str, slots: int, at_utc: str, succeeds: str | None) -> JobEvent:
    kept = f" in place of {succeeds}" if succeeds else ""
    sentence = f"{node_id} registered with {slots} slot{'s' * (slots != 1)}{kept}"
    return JobEvent(at_utc, EventKind.REGISTERED, sentence, node_id=node_id)


def of_command(command: Command) -> Iterator[JobEvent]:
    """A command as it was asked, and its answer."""
    about = f" {command.node_id}" if command.node_id else ""
    why = f" ({command.reason})" if command.reason else ""
    asked = f"{command.by} asked to {command.verb.value}{about}{why}"
    yield JobEvent(command.asked_utc, EventKind.COMMAND, asked, node_id=command.node_id or "")
    if command.phase is not CommandPhase.ASKED:
        sentence = f"{command.verb.value}{about} {command.phase.value}: {command.answer}"
        refused = command.phase is CommandPhase.REFUSED
        yield JobEvent(
            command.answered_utc, EventKind.COMMAND, sentence, node_id=command.node_id or "", bad=refused
        )


def of_exclusion(exclusion: Exclusion) -> JobEvent:
    """A node that takes no seat from now on."""
    until = f" until {exclusion.until_utc}" if exclusion.until_utc else ""
    sentence = f"{exclusion.node_id} takes no seat{until}: {exclusion.why} ({exclusion.by})"
    return JobEvent(exclusion.since_utc, EventKind.EXCLUDED, sentence, node_id=exclusion.node_id)


def of_attempt(
    attempt: int,
    created_utc: str,
    rounds: tuple[RoundRecord, ...],
    nodes: Mapping[str, Node],
    commands: tuple[Command, ...],
    exclusions: Mapping[str, Exclusion],
    assignments: Iterable[Assignment] = (),
) -> tuple[JobEvent, ...]:
    """Everything an attempt's records tell, in order."""
    found = [JobEvent(created_utc, EventKind.CREATED, f"attempt {attempt} begun")]
    registered = [of_node(node) for node in nodes.values()] + [of_assignment(one) for one in assignments]
    found += dict.fromkeys(registered)
    found += [event for command in commands for event in of_command(command)]
    found += [of_exclusion(one) for one in exclusions.values()]
    found += [event for record in rounds for event in of_round(record)]
    return in_order(tuple(found))
