"""The story of a round's end: cause, evidence, consequences, decision, and where the time went. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvrx_async.job.records import EndedBy, FaultKind, Outcome, RankEnd, Root
from nvrx_async.job.round_record import RoundRecord
from nvrx_async.job.silence import Silent
from nvrx_async.job.waterfall import Waterfall, waterfall

HANG = "hang"
"""Key of a rank end's `extra`: what the rank was doing when a hang was found."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """A rank that ended in the round without being its cause. `what` says how, in words."""

    rank: int
    node_id: str
    host: str
    kind: FaultKind | None
    what: str


@dataclass(frozen=True, slots=True)
class Stack:
    """What one rank was doing when a hang was found. `frames` are innermost first, as `file:line in function`.

    `ended`: it had exited by then.
    """

    rank: int
    node_id: str
    host: str
    hung: bool
    step: int | None
    section: str
    silent_s: float
    state: str
    frames: tuple[str, ...]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Why:
    """Why a round ended, or why the job goes on as it does.

    `root` is None while the round runs, and for a success. `error_line`: the first line of the culprit's own
    error, else its last line on stderr. `decision`: what was decided and why. `interrupted_by`: the node that
    said first that the round is over. `silent`: ranks that do not get on now, in the round that runs.
    """

    run_id: str
    attempt: int
    round: int
    headline: str
    root: Root | None
    error_line: str = ""
    place: str = ""
    log: str = ""
    evidence: tuple[str, ...] = ()
    interrupted_by: str = ""
    decision: str = ""
    level: str = ""
    consequences: tuple[Consequence, ...] = ()
    stacks: tuple[Stack, ...] = ()
    waterfall: Waterfall | None = None
    outcome: Outcome | None = None
    digest: str = ""
    silent: tuple[Silent, ...] = ()


def explain(record: RoundRecord, following: RoundRecord | None = None, *, stands: str = "") -> Why:
    """Explain a round; `following` is the next one, for the time until training went on.

    `stands` is said of a round that nothing has ended, as far as is known: why it does not go on all the same.
    """
    root, end = record.root, record.root.end if record.root else None
    return Why(
        run_id=record.run_id,
        attempt=record.attempt,
        round=record.number,
        headline=_headline(record, stands),
        root=root,
        error_line=_error_line(end),
        place=_place(end),
        log=end.log if end else "",
        evidence=tuple(line for line in end.last_lines if line.strip()) if end else (),
        interrupted_by=record.interrupt.by if record.interrupt else "",
        decision=record.decision,
        level=record.level.value if record.level else "",
        consequences=_consequences(record),
        stacks=_stacks(record),
        waterfall=waterfall(record, following),
        outcome=record.outcome,
        digest=record.digest,
    )


def how(end: RankEnd) -> str:
    """How a rank ended, as a clause."""
    if end.signal is not None:
        return f"killed by signal {end.signal}" + (", sent by us" if end.by is EndedBy.US else "")
    if end.exit_code is not None:
        return f"exited with code {end.exit_code}"
    return "could not be started"


def _headline(record: RoundRecord, stands: str) -> str:
    if record.root is not None:
        return record.root.sentence
    if record.outcome is not None:
        return record.outcome.reason
    if record.interrupt is not None:
        judged = f"is over, and not judged yet: {record.interrupt.reason}"
        return f"{judged}; {stands}" if stands else judged
    if stands:
        return stands
    if record.before is not None:
        return f"runs since round {record.before.number} ended: {record.before.sentence}"
    return "runs since the job was started"


def _error_line(end: RankEnd | None) -> str:
    if end is None:
        return ""
    if end.error is not None:
        first = end.error.message.split("\n", 1)[0]
        return f"{end.error.type}: {first}" if first else end.error.type
    lines = [line for line in end.last_lines if line.strip()]
    return lines[-1] if lines else ""


def _place(end: RankEnd | None) -> str:
    error = end.error if end else None
    if error is None or not error.file:
        return ""
    return f"{error.file}:{error.line}" + (f" in {error.function}" if error.function else "")


def _consequences(record: RoundRecord) -> tuple[Consequence, ...]:
    """Everybody else: who complained first, then who was only stopped."""
    root = record.root
    culprit = root.end.rank if root and root.end and root.culprit else None
    found = [
        Consequence(end.rank, node_id, host, end.kind, _what(end))
        for node_id, host, end in record.ends
        if end.rank != culprit
    ]
    return tuple(sorted(found, key=lambda one: (one.kind is FaultKind.STOPPED_BY_US, one.rank)))


def _what(end: RankEnd) -> str:
    line = _error_line(end) if end.kind is not FaultKind.STOPPED_BY_US else ""
    return f"{how(end)}: {line}" if line else how(end)


def _stacks(record: RoundRecord) -> tuple[Stack, ...]:
    found = [(node_id, host, end, end.extra.get(HANG)) for node_id, host, end in record.ends]
    return tuple(
        _stack(node_id, host, end.rank, raw) for node_id, host, end, raw in found if isinstance(raw, Mapping)
    )


def _stack(node_id: str, host: str, rank: int, raw: Mapping[str, Any]) -> Stack:
    step, silent = raw.get("step"), raw.get("silent_s")
    frames = raw.get("frames")
    return Stack(
        rank=rank,
        node_id=node_id,
        host=host,
        hung=bool(raw.get("hung")),
        step=step if isinstance(step, int) else None,
        section=str(raw.get("section") or ""),
        silent_s=float(silent) if isinstance(silent, int | float) else 0.0,
        state=str(raw.get("state") or ""),
        frames=tuple(_frame(one) for one in frames) if isinstance(frames, list) else (),
        ended=bool(raw.get("ended")),
    )


def _frame(raw: object) -> str:
    match raw:
        case [str(file), int(line), str(function)]:
            return f"{file}:{line} in {function}"
        case _:
            return str(raw)
