"""The closing summary: the last thing on the screen, and a file. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvrx_async.job.records import Ending
from nvrx_async.job.where import where
from nvrx_launcher.advice import what_next
from nvrx_launcher.exit_codes import MEANINGS, ExitCode, meaning
from nvrx_launcher.wording import clean, count, duration, evidence, how_it_ended, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvrx_async.job.records import Outcome, Root
    from nvrx_launcher.palette import Palette
    from nvrx_launcher.story import RoundTold, Story

_SHOWN_FIRST = 1
_SHOWN_LAST = 9
_WIDTH = 68
"""Columns right of the titles, on a screen of 80."""
_LEAST_WIDTH = 30
_WORTH_SAYING_S = 0.5


def summary(story: Story, outcome: Outcome, palette: Palette, now_s: float) -> list[str]:
    """The summary's lines; the first is the verdict, the others stand below it.

    `story` includes the end; `now_s` are seconds of CLOCK_BOOTTIME.
    """
    lines = [_verdict(story, outcome, palette)]
    if not outcome.success and story.root is not None:
        lines.extend(_block("cause", _cause(story.root, palette)))
    if story.rounds:
        lines.extend(_block("rounds", _rounds(story.rounds)))
    lines.extend(_block("time", _times(story, now_s)))
    lines.extend(_block("logs", [palette.path(story.log_folder)]))
    if not outcome.success:
        then = what_next(story.root, outcome.exit_code, story.max_restarts)
        lines.extend(_block("next", [palette.path(then)] if then else []))
    return lines


def _verdict(story: Story, outcome: Outcome, palette: Palette) -> str:
    name = f"job {story.run_id}" + (f", attempt {story.attempt}" if story.attempt > 0 else "")
    if outcome.success:
        restarts = max(len(story.rounds) - 1, 0)
        after = f" after {count(restarts, 'restart')}" if restarts else ""
        return palette.success(f"{name} finished{after}")
    code = outcome.exit_code
    verb = _ended_as(outcome)
    known = any(shown == str(code) for shown, _ in MEANINGS) and code != ExitCode.TRAINING_FAILED
    told = f"exit code {code}: {meaning(code)}" if known else f"exit code {code}"
    reason = f": {clean(outcome.reason)}" if outcome.reason else ""
    return palette.error(f"{name} {verb}{reason}") + f" ({told})"


def _ended_as(outcome: Outcome) -> str:
    words = {
        Ending.CANCELLED: "cancelled",
        Ending.PREEMPTED: "preempted",
        Ending.TIME_LIMIT: "stopped at its time limit",
    }
    failed = outcome.exit_code in (ExitCode.TRAINING_FAILED, ExitCode.DO_NOT_REQUEUE)
    known = words.get(outcome.ending) if outcome.ending is not None else None
    return known or ("failed" if failed else "stopped")


def _cause(root: Root, palette: Palette) -> list[str]:
    if root.end is None:
        return [clean(root.sentence)]
    at = f" on {where(root.node_id, root.host)}" if root.node_id or root.host else ""
    head = f"rank {root.end.rank}{at} {how_it_ended(root.end)}, {duration(root.end.ran_s)} into its round"
    log = [f"log {palette.path(root.end.log)}"] if root.end.log else []
    if not root.culprit:  # a victim must not read as the one to blame
        return [palette.error(clean(root.sentence)), f"seen by a victim: {head}", *evidence(root.end), *log]
    return [palette.error(head), *evidence(root.end), *log]


def _rounds(rounds: Sequence[RoundTold]) -> list[str]:
    left_out = len(rounds) - _SHOWN_FIRST - _SHOWN_LAST
    if left_out <= 1:
        return [_round(one) for one in rounds]
    first, last = rounds[:_SHOWN_FIRST], rounds[-_SHOWN_LAST:]
    between_s = sum(_length_s(one) for one in rounds[_SHOWN_FIRST:-_SHOWN_LAST])
    return [
        *(_round(one) for one in first),
        f"... {left_out} more, {duration(between_s)} in all",
        *(_round(one) for one in last),
    ]


def _round(one: RoundTold) -> str:
    head = f"{one.number:<3} {duration(_length_s(one)):<12} {count(one.world_size, 'rank')}: "
    return head + shortened(clean(one.why), max(_WIDTH - len(head), _LEAST_WIDTH))


def _length_s(one: RoundTold) -> float:
    return one.ended_s - one.started_s if one.ended_s is not None else 0.0


def _times(story: Story, now_s: float) -> list[str]:
    times = story.times(now_s)
    if not story.rounds:
        return [f"{duration(times.total_s)}, no round ran"]
    parts = [f"{duration(times.training_s)} in rounds", f"{duration(times.starting_s)} before"]
    if len(story.rounds) > 1:
        parts.append(f"{duration(times.restarting_s)} between")
    if times.closing_s >= _WORTH_SAYING_S:
        parts.append(f"{duration(times.closing_s)} after")
    return [f"{duration(times.total_s)}: {', '.join(parts)}"]


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title if index == 0 else '':<8}{line}" for index, line in enumerate(lines)]
