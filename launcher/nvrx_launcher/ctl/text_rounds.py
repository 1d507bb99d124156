"""Rounds, events and the story of a restart as text. Pure: records in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from nvrx_async.job.job_events import EventKind, JobEvent
from nvrx_async.job.records import FaultKind
from nvrx_async.job.round_record import RoundRecord
from nvrx_async.job.times import as_utc, seconds_between
from nvrx_async.job.waterfall import Waterfall
from nvrx_async.job.where import where
from nvrx_async.job.why import Consequence, Stack, Why
from nvrx_launcher.ctl.lines import hanging, packed
from nvrx_launcher.ctl.screen import Screen
from nvrx_launcher.ctl.table import Cell, Column, Paint, cut, signs, table
from nvrx_launcher.wording import clean, count, duration, number_list, one_line

_TITLE = 10
_BAR = 30
_LEAST_BAR = 8
_LEAST_TEXT = 20
_STACKS = 8
_FRAMES = 12
_CONSEQUENCES = 12
_READABLE = 30
_LEAST_SENTENCE = 30
_PART = 0.25
_LEAST_MEANING = 25
_SHORT = {
    "told": "every node knows",
    "stopped": "evidence, then the stop",
    "reaped": "no rank lives",
    "reported": "every node has reported",
    "ended": "the cause is chosen",
    "sealed": "the next world is written",
    "released": "orders to start",
    "started": "all processes exist",
    "connected": "interpreter, imports",
    "first step": "training sets itself up",
}
"""What a step of a restart is, where there is no room for the sentence."""


def rounds(found: Sequence[RoundRecord], screen: Screen) -> list[str]:
    """`nvrx rounds JOB`."""
    narrow = screen.narrow  # the kind of a fault says more there than the beginning of its sentence
    columns = [
        Column("ROUND", right=True),
        Column("STATE"),
        Column("RANKS", right=True, priority=1 if narrow else 0),
        Column("OPENED", right=True, priority=3),
        Column("RAN", right=True),
        Column("NEXT", priority=2),
        Column("WHY IT ENDED", flexible=True, least=_LEAST_TEXT if narrow else _READABLE),
        *(
            [
                Column("DECISION", flexible=True, priority=5 * narrow, least=_READABLE),
                Column("DIGEST", priority=4 * narrow),
            ]
            if screen.wide
            else []
        ),
    ]
    rows = [_round(one, screen) for one in found]
    return table(columns, rows, screen.width, screen.palette.quiet)


def _round(one: RoundRecord, screen: Screen) -> list[Cell | str]:
    over = one.times.fault_utc or one.times.ended_utc or screen.now.isoformat()
    ran = seconds_between(one.times.running_utc, over)
    why = one.root.sentence if one.root else one.outcome.reason if one.outcome else "-"
    if one.root and screen.narrow:
        why = one.root.kind.value.replace("_", " ")
    asked = one.root is not None and one.root.kind is FaultKind.ASKED
    ended = "on request" if asked else "failed"
    state = "finished" if one.success else ended if one.root else one.phase.value
    palette = screen.palette
    paint = {"finished": palette.success, "running": palette.success, "failed": palette.error}
    return [
        str(one.number),
        Cell(state, paint.get(state, palette.warning)),
        str(one.world_size or "-"),
        screen.clock(one.times.opened_utc),
        "-" if ran is None else duration(max(ran, 0.0)),
        one.level.value if one.level else "-",
        clean(why),
        *([clean(one.decision) or "-", one.digest or "-"] if screen.wide else []),
    ]


def events(found: Sequence[JobEvent], screen: Screen) -> list[str]:
    """`nvrx events JOB`, one line each."""
    return [event_line(event, screen) for event in found]


def event_line(event: JobEvent, screen: Screen) -> str:
    """Time, kind, sentence."""
    paint = screen.palette.error if event.bad else _plain
    if event.kind in (EventKind.RUNNING, EventKind.DONE) or (
        event.kind is EventKind.OUTCOME and not event.bad
    ):
        paint = screen.palette.success
    moment = screen.palette.quiet(screen.clock(event.at_utc))
    kind = f"{event.kind.value:<11}"
    width = screen.width if screen.terminal else None  # a line each, in a pipe
    plain, painted = f"{screen.clock(event.at_utc)}  {kind}  ", f"{moment}  {paint(kind)}  "
    return "\n".join(
        hanging(plain, one_line(event.sentence), width, least=_LEAST_SENTENCE, paint_head=painted)
    )


def why(one: Why, screen: Screen, *, stands: str = "") -> list[str]:
    """`nvrx why JOB`: cause, evidence, consequences, decision, time. `stands`: how a later round stands."""
    palette = screen.palette
    title = "cause" if one.root else "outcome" if one.outcome else "now"
    headline = _block(screen, title, [clean(one.headline)], palette.error if one.root else None)
    lines = packed([f"job {one.run_id}, attempt {one.attempt}, round {one.round}"], screen.width)
    now = [*([clean(stands)] if stands else []), *_silent(one, screen)]
    silent = _block(screen, "silent" if title == "now" else "now", now, palette.warning)
    lines += [*headline, *silent] if title == "now" else [*silent, *headline]
    if one.root is not None:
        blame = (
            "" if one.root.culprit or one.root.kind is FaultKind.ASKED else "; nobody is to blame for certain"
        )
        lines += _block(screen, "kind", [f"{one.root.kind.value}{blame}"])
    if (
        one.error_line
        and one.root is not None
        and one.root.end is not None
        and one.root.end.error is not None
    ):
        lines += _block(
            screen, "error", [clean(one.error_line), *([f"at {clean(one.place)}"] if one.place else [])]
        )
    if one.evidence:
        lines += _block(screen, "last lines", [f"| {clean(line)}" for line in one.evidence])
    if one.log:
        lines += _path(screen, "log", one.log)
    lines += _block(screen, "others", _others(one.consequences, screen))
    repeated = one.decision == one.headline
    decided = f"{one.level}: {clean(one.decision)}" if one.level else "" if repeated else clean(one.decision)
    lines += _block(screen, "decided", [decided] if decided else [])
    if one.outcome is not None and not one.outcome.success:
        lines += _block(
            screen, "outcome", [f"exit code {one.outcome.exit_code}: {clean(one.outcome.reason)}"]
        )
    culprit = one.root.end.rank if one.root and one.root.end and one.root.culprit else None
    lines += _stacks(one.stacks, culprit, screen)
    if one.waterfall is not None:
        asked = one.root is not None and one.root.kind is FaultKind.ASKED
        lines += [
            "",
            *waterfall(one.waterfall, screen, since="the first rank's end" if asked else "the fault"),
        ]
    return lines


def _silent(one: Why, screen: Screen) -> list[str]:
    """Who does not get on now, and until when that is waited for."""
    lines = []
    for rank in one.silent[:_CONSEQUENCES]:
        step = f", at step {rank.step}" if rank.step is not None else ""
        since = f"in round {rank.round} " if rank.round != one.round else ""
        who = f"{since}rank {rank.rank} on {where(rank.node_id, rank.host)}"
        told = f"{who} {clean(rank.what)}, for {duration(rank.since_s)}{step}"
        if rank.due_in_s is None:
            due = "it has no deadline"
        elif rank.due_in_s > 0:
            at = screen.clock(as_utc(screen.now + timedelta(seconds=rank.due_in_s)))
            due = f"taken for hung in {duration(rank.due_in_s)}, at {at}, if nothing comes"
        else:
            due = "its deadline has passed, it may be waiting for another one"
        lines.append(f"{told}; {due}")
    if len(one.silent) > _CONSEQUENCES:
        lines.append(f"... {len(one.silent) - _CONSEQUENCES} more, in -o json")
    return lines


def described(record: RoundRecord, story: Why, screen: Screen) -> list[str]:
    """`nvrx describe JOB round N`: the story, then seats and moments."""
    seats = [
        f"{seat.node_id}  group rank {seat.group_rank}, ranks {seat.first_rank} to {seat.first_rank + seat.slots - 1}"
        for seat in record.seats[: screen.rows]
    ]
    names = ("opened", "running", "released", "started", "hello", "first_step", "fault", "gone", "ended")
    moments = [
        f"{name.replace('_', ' '):<11}{utc}"
        for name in names
        if (utc := getattr(record.times, f"{name}_utc"))
    ]
    spares = [", ".join(spare.node_id for spare in record.spares)] if record.spares else []
    lines = why(story, screen)
    for title, block in (("seats", seats), ("spares", spares), ("moments", moments)):
        lines += _block(screen, title, block)
    return [*lines, *_block(screen, "digest", [record.digest] if record.digest else [])]


def waterfall(one: Waterfall, screen: Screen, *, since: str = "the fault") -> list[str]:
    """Where the time from the fault to the first step went: a bar for each stretch, below each other."""
    if not one.steps:
        return []
    last = one.steps[-1].name
    ends = "the first step" if last.endswith("first step") else "the end of the job"
    until = ends if one.complete else f"'{last}', which is as far as is known"
    lines = packed([f"{duration_ms(one.seconds)} from {since} to {until}"], screen.width, "  ")
    names = max(signs(step.name) for step in one.steps)
    times = max(signs(duration_ms(step.seconds)) for step in one.steps)
    room = (screen.width or 100) - names - times - 8
    bar = max(_LEAST_BAR, min(_BAR, room // 3))
    passed = 0.0
    for step in one.steps:
        drawn = _bar(passed, step.seconds, one.seconds, bar)
        passed += step.seconds
        last = f" (last: {step.last})" if step.last else ""
        # On a narrow screen the explanation is cut, never the node that was waited for.
        free = (screen.width or 10_000) - names - times - bar - 8 - signs(last)
        short = _SHORT.get(step.name.rpartition(" + ")[2], step.meaning)
        meaning = step.meaning if signs(step.meaning) <= free else short
        if free + signs(last) < _LEAST_MEANING:  # the bar takes all there is: who was last stands below it
            below, text = [f"last: {step.last}"] if step.last else [], ""
        else:
            fits = signs(meaning) <= free or not step.last
            text = meaning + last if fits else f"last: {step.last}"
            below, text = [], cut(text, free + signs(last))
        lines.append(
            f"  {step.name:<{names}}  {duration_ms(step.seconds):>{times}}  {screen.palette.path(drawn)}  "
            f"{screen.palette.quiet(text)}".rstrip()
        )
        lines += [screen.palette.quiet(f"    {cut(line, (screen.width or 10_000) - 4)}") for line in below]
    if one.missing:
        missing = packed([f"  not told: {', '.join(one.missing)}"], screen.width, "    ")
        lines += [screen.palette.quiet(line) for line in missing]
    return lines


def duration_ms(seconds: float) -> str:
    """Short times in milliseconds: `38 ms`, `1.42 s`, `1 min 3 s`."""
    if seconds < 1.0:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else duration(seconds)  # noqa: PLR2004 - a minute


def _bar(start: float, length: float, whole: float, width: int) -> str:
    if whole <= 0:
        return " " * width
    first = min(width - 1, round(start / whole * width))
    last = max(first + 1, min(width, round((start + length) / whole * width)))
    return " " * first + ("█" * (last - first) if length > 0 else "▏") + " " * (width - last)


def _others(found: Sequence[Consequence], screen: Screen) -> list[str]:
    """Who ended as a consequence: each that complained, and how many were only stopped."""
    told = [one for one in found if one.kind not in (FaultKind.STOPPED_BY_US, None)]
    stopped = [one.rank for one in found if one.kind is FaultKind.STOPPED_BY_US]
    finished = [one.rank for one in found if one.kind is None]
    alike: dict[tuple[str, str], list[Consequence]] = {}
    for one in told:
        alike.setdefault((one.kind.value if one.kind else "", clean(one.what)), []).append(one)
    rows = _CONSEQUENCES if screen.rows is not None else len(alike)
    lines = [_alike(group, kind, what) for (kind, what), group in list(alike.items())[:rows]]
    if len(alike) > rows:
        lines.append(f"... {len(alike) - rows} other ends, in -o json")
    for numbers, what in ((stopped, "stopped by us"), (finished, "had finished")):
        if numbers:
            lines.append(f"{count(len(numbers), 'rank')} {what}: {_runs(numbers)}")
    return lines


def _alike(group: Sequence[Consequence], kind: str, what: str) -> str:
    """Ranks that ended in the same way, in one line."""
    if len(group) == 1:
        return f"rank {group[0].rank} on {where(group[0].node_id, group[0].host)}: {kind}, {what}"
    return f"ranks {_runs([one.rank for one in group])}: {kind}, {what}"


def _runs(numbers: Sequence[int]) -> str:
    text = number_list(numbers)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - what a line holds


def _stacks(found: Sequence[Stack], culprit: int | None, screen: Screen) -> list[str]:
    """What ranks were doing when a hang was found: the culprit, then those that hung, then who waited."""
    if not found:
        return []
    ordered = sorted(found, key=lambda one: (one.rank != culprit, not one.hung, one.rank))
    lines = ["", "what the ranks did"]
    hung_s = min((one.silent_s for one in found if one.hung and one.silent_s), default=0.0)
    for one in ordered[:_STACKS]:
        blamed = "to blame" if one.rank == culprit else "hung" if one.hung else ""
        got_on = 0 < one.silent_s < hung_s * _PART  # it reported long after those that hung had fallen silent
        mark = (
            Cell(f" {blamed}", screen.palette.error)
            if blamed
            else " had exited"
            if one.ended
            else " got on"
            if got_on
            else " waited"
        )
        step = f", step {one.step}" if one.step is not None else ""
        section = f", in section {clean(one.section)}" if one.section else ""
        silent = f", silent for {duration(one.silent_s)}" if one.silent_s else ""
        head = f"  rank {one.rank} on {where(one.node_id, one.host)}:"
        lines += packed([head, mark, f"{step}{section}{silent}"], screen.width, "    ")
        for frame in one.frames[:_FRAMES]:
            lines += packed([f"      {clean(frame)}"], screen.width, "        ")
    if len(ordered) > _STACKS:
        lines.append(f"  ... {len(ordered) - _STACKS} more, in -o json")
    return lines


def _block(screen: Screen, title: str, lines: Sequence[str], paint: Paint | None = None) -> list[str]:
    """Lines under a title at their left, broken where the screen ends."""
    room = max((screen.width or 10_000) - _TITLE - 4, _LEAST_TEXT)
    broken = [part for line in lines for part in packed([clean(line)], room, "  ")]
    found = []
    for place, line in enumerate(broken):
        head = title if place == 0 else ""
        found.append(f"  {screen.palette.quiet(f'{head:<{_TITLE}}')}  {paint(line) if paint else line}")
    return found


def _path(screen: Screen, title: str, path: str) -> list[str]:
    """A path under a title. It is never parted, so that it can be taken from the screen."""
    if screen.width is None or signs(path) <= screen.width - _TITLE - 4:
        return _block(screen, title, [path], screen.palette.path)
    return [f"  {screen.palette.quiet(title)}", f"  {screen.palette.path(path)}"]


def _plain(text: str) -> str:
    return text
