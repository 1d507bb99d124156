"""`nvrx trace`: the restart that led to a round, as its trace in Jaeger shows it, from what etcd or the disk holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvrx_async.job.errors import NoSuchRoundError
from nvrx_async.job.records import Mark
from nvrx_async.job.round_record import NodeMarks, RoundRecord
from nvrx_async.job.times import seconds_between
from nvrx_async.job.waterfall import Waterfall, waterfall
from nvrx_launcher.ctl import text_rounds
from nvrx_launcher.ctl.lines import packed
from nvrx_launcher.ctl.place import EtcdOptions, job_client
from nvrx_launcher.ctl.screen import Screen
from nvrx_launcher.ctl.table import cut, signs
from nvrx_launcher.ctl.text_rounds import duration_ms
from nvrx_launcher.wording import clean

_MOST_OF_A_NAME = 3
"""A third of the screen is for the node's name, where it is narrow."""
_ENDING = (Mark.FAULT, Mark.TOLD, Mark.STOPPING, Mark.GONE, Mark.REPORTED)
Marks: TypeAlias = Sequence[tuple[Mapping[str, NodeMarks], Mark]]
_STARTING = (Mark.RELEASED, Mark.STARTED, Mark.HELLO, Mark.FIRST_STEP)


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """A round with the restart before it.

    `trace_id` finds it in Jaeger, "" where the round says none. `restart` is None for a round that no fault led to.
    `ending` are the nodes' moments in the round before, `starting` those in this one.
    """

    run_id: str
    attempt: int
    round: int
    trace_id: str
    why: str
    restart: Waterfall | None
    fault_utc: str
    ending: tuple[NodeMarks, ...] = ()
    starting: tuple[NodeMarks, ...] = ()


async def trace(options: EtcdOptions, run_id: str, screen: Screen, *, number: int | None) -> int:
    """Show the restart that led to a round; the last round, unless one is named."""
    async with job_client(options, run_id) as job:
        found = round_trace(*await job.restart(number))
    screen.emit("RoundTrace", found, lambda: lines(found, screen))
    return 0


def show(run_id: str, rounds: Sequence[RoundRecord], screen: Screen, number: int | None) -> None:
    """Write the trace of one of these rounds.

    Raises:
        NoSuchRoundError: it is none of them.
    """
    by_number = {record.number: record for record in rounds}
    newest = max(by_number, default=0)
    number = newest if number is None else number
    if number not in by_number:
        raise NoSuchRoundError(run_id, number, newest)
    found = round_trace(by_number.get(number - 1), by_number[number])
    screen.emit("RoundTrace", found, lambda: lines(found, screen))


def round_trace(before: RoundRecord | None, record: RoundRecord) -> RoundTrace:
    """What is known of the restart between two rounds. Pure."""
    return RoundTrace(
        record.run_id,
        record.attempt,
        record.number,
        record.trace_id,
        record.why,
        waterfall(before, record) if before is not None else None,
        before.times.fault_utc if before is not None else "",
        before.nodes if before is not None else (),
        record.nodes,
    )


def lines(one: RoundTrace, screen: Screen) -> list[str]:
    """The picture: bars over all nodes, then when each node came to each point."""
    named = f", trace {one.trace_id}" if one.trace_id else ""
    head = packed([f"job {one.run_id}, attempt {one.attempt}, round {one.round}{named}"], screen.width)
    if one.restart is None:
        none = f"no restart led here: {clean(one.why) or 'the job begins'}"
        return [*head, *packed([none], screen.width)]
    told = packed([clean(one.why)], screen.width)
    drawn = [*head, *told, "", *text_rounds.waterfall(one.restart, screen)]
    nodes = _nodes(one, screen)
    return [*drawn, "", *nodes] if nodes else drawn


def _nodes(one: RoundTrace, screen: Screen) -> list[str]:
    """A row a node: time since the fault, at each of its moments."""
    started = {node.node_id: node for node in one.starting}
    ended = {node.node_id: node for node in one.ending}
    marks = [(ended, mark) for mark in _ENDING if any(mark in node.at_utc for node in one.ending)] + [
        (started, mark) for mark in _STARTING if any(mark in node.at_utc for node in one.starting)
    ]
    if not marks:
        return []
    whole = _table(one, marks, screen)
    if screen.width is None or max(map(signs, whole)) <= screen.width:
        return whole
    parts = [[pair for pair in marks if pair[0] is held] for held in (ended, started)]
    fitting = [some for part in parts if part for some in _fitting(one, part, screen)]
    return [line for some in fitting for line in (*_table(one, some, screen), "")][:-1]


def _fitting(one: RoundTrace, marks: Marks, screen: Screen) -> list[Marks]:
    """The same in so many tables that each is as wide as the screen at most."""
    wide = max(map(signs, _table(one, marks, screen)))
    if screen.width is None or wide <= screen.width or len(marks) == 1:
        return [marks]
    half = (len(marks) + 1) // 2
    return [*_fitting(one, marks[:half], screen), *_fitting(one, marks[half:], screen)]


def _table(one: RoundTrace, marks: Marks, screen: Screen) -> list[str]:
    nodes = sorted({node.node_id for node in (*one.ending, *one.starting)})
    rows = [["node", *(mark.value.replace("_", " ") for _, mark in marks)]]
    for node_id in nodes[: screen.rows]:
        cells = []
        for held, mark in marks:
            utc = held[node_id].at_utc.get(mark, "") if node_id in held else ""
            passed_s = seconds_between(one.fault_utc, utc)
            cells.append("-" if passed_s is None else f"+{duration_ms(max(passed_s, 0.0))}")
        rows.append([node_id if screen.width is None else cut(node_id, _name_places(screen.width)), *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _name_places(width: int) -> int:
    return max(width // _MOST_OF_A_NAME, 8)
