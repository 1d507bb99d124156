"""How notices read on the console. Pure: a notice, the story before it and colours in, lines out.

A first line says what happened; indented lines below it say details. Each is one line however long it is,
so that a search finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nvrx_async.job.records import CommandPhase, End, FaultKind, Level, RankEnd
from nvrx_async.rounds.effects import (
    Commanded,
    Finished,
    Interrupted,
    Judged,
    Notice,
    RankFailed,
    Registered,
    RoundRunning,
    Waiting,
)
from nvrx_launcher.advice import advice
from nvrx_launcher.summary import summary
from nvrx_launcher.wording import clean, count, duration, evidence, how_it_ended, rank_range

if TYPE_CHECKING:
    from nvrx_launcher.palette import Palette
    from nvrx_launcher.story import Story

_NEXT: Final = {
    Level.IN_PROCESS: "round {next} in the same processes",
    Level.IN_JOB: "round {next} with new processes on the same nodes",
    Level.REPLACE_NODE: "round {next} without {culprit}",
    Level.REQUEUE: "no further round here, exit code 75: safe to requeue",
    Level.STOP: "no further round, the job stops",
}

_LATE: Final = "it had ended before this node was back in it; this node ends with the same exit code"


def render(notice: Notice, story: Story, palette: Palette, now_s: float) -> list[str]:
    """The lines for a notice. `story` is as told before it; `now_s` are seconds of CLOCK_BOOTTIME."""
    match notice:
        case Registered():
            return _registered(notice, palette)
        case Waiting(outage=False):
            return [clean(notice.sentence)]
        case Waiting():
            return [f"waiting: {clean(notice.sentence)}{_at_most(notice, now_s)}"]
        case RoundRunning():
            return _running(notice, story, palette)
        case RankFailed():
            return _failed(notice, palette)
        case Interrupted():
            return [palette.warning(f"round {notice.round} is over: {clean(notice.reason)}")]
        case Judged():
            return _judged(notice.end, story, palette)
        case Commanded():
            return _commanded(notice, palette)
        case Finished():
            verdict, *rest = summary(story.told(notice, now_s), notice.outcome, palette, now_s)
            return [verdict, *([_LATE] if notice.late else []), *rest]


def _registered(notice: Registered, palette: Palette) -> list[str]:
    node = notice.node
    again = f", attempt {notice.attempt}" if notice.attempt > 0 else ""
    lines = [f"this node is {node.node_id} at {node.address} with {count(node.slots, 'rank')}{again}"]
    took_over = f"in the place of an earlier agent: {clean(notice.took_over)}"
    return [*lines, palette.quiet(took_over)] if notice.took_over else lines


def _at_most(notice: Waiting, now_s: float) -> str:
    if notice.until_s is None:
        return ""
    return f" (at most {duration(notice.until_s - now_s)} more)"


def _running(notice: RoundRunning, story: Story, palette: Palette) -> list[str]:
    here = "this node is a spare"
    if notice.assignment is not None:
        seat = notice.assignment.seat
        here = f"{rank_range(seat.first_rank, seat.slots)} here"
    size = f"{count(notice.world_size, 'rank')} on {count(notice.nodes, 'node')}"
    head = palette.success(f"round {notice.number} runs:")
    # Who was here saw why the round before ended; who comes later has not.
    why = [palette.quiet(f"since {clean(notice.why)}")] if notice.number > 0 and not story.rounds else []
    return [f"{head} {size}, {here}", *why]


def _failed(notice: RankFailed, palette: Palette) -> list[str]:
    end = notice.end
    head = palette.error(f"rank {end.rank} on {notice.where} {how_it_ended(end)}")
    return [f"{head}, {duration(end.ran_s)} into round {notice.round}", *details(end, palette)]


def details(end: RankEnd, palette: Palette) -> list[str]:
    """Evidence of a rank's end and where its log is."""
    return [*evidence(end), *([f"log {palette.path(end.log)}"] if end.log else [])]


def _commanded(notice: Commanded, palette: Palette) -> list[str]:
    command = notice.command
    about = f" {command.node_id}" if command.node_id else ""
    why = f" ({clean(command.reason)})" if command.reason else ""
    head = f"{command.verb.value}{about}, asked by {clean(command.by)}{why}, is {command.phase.value}"
    paint = palette.warning if command.phase is CommandPhase.DONE else palette.error
    return [paint(f"{head}:") + f" {clean(command.answer)}"]


def _judged(end: End, story: Story, palette: Palette) -> list[str]:
    culprit = end.root.node_id or end.root.host or "the lost node"
    then = _NEXT[end.level].format(next=end.number + 1, culprit=culprit)
    paint = palette.error if end.level is Level.STOP else palette.warning
    hint = advice(end.root, end.level, story.max_restarts)
    return [
        paint(f"round {end.number} {'ended' if end.root.kind is FaultKind.ASKED else 'failed'}:")
        + f" {clean(end.root.sentence)}",
        f"next: {then}" + (f" ({clean(end.reason)})" if end.reason else ""),
        *([f"{palette.path('hint:')} {hint}"] if hint else []),
    ]
