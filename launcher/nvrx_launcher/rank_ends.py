"""How ranks ended: what the kernel, their stderr and the watch over them say, put together."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from nvrx_async.aside import aside
from nvrx_async.faults import HANG, EndFacts, classify, last_lines, rank_error, state_as_extra
from nvrx_async.job.records import Assignment, EndedBy, FaultKind, PythonError, RankEnd
from nvrx_launcher.cgroup import oom_kills
from nvrx_launcher.clock import utc
from nvrx_launcher.keeper_events import RankExited
from nvrx_launcher.rank_watch import RankWatch
from nvrx_launcher.reply_file import recorded_error
from nvrx_launcher.workers import RankCommand

TAIL_BYTES = 64 * 1024
TAIL_LIMIT_S = 1.0
"""How long evidence is waited for that lies on a slow disk: the fault must be told meanwhile."""
SHOWN_LINES = 5


@dataclass(slots=True)
class RunningRanks:
    """Ranks of one round under one keeper.

    `oom_kills`: as counted before they started. `fenced`: the keeper killed them at its deadline. `exits`: what it
    reported, and when, by local rank.
    """

    assignment: Assignment
    commands: tuple[RankCommand, ...]
    oom_kills: int
    fenced: bool = False
    exits: dict[int, tuple[RankExited, str]] = field(default_factory=dict)


def unstarted(running: RunningRanks, kind: FaultKind, reason: str) -> tuple[RankEnd, ...]:
    """The ends of ranks that were never started."""
    seat = running.assignment.seat
    return tuple(
        RankEnd(seat.first_rank + i, i, 0, kind, EndedBy.US, ended_utc=utc(), detail=reason)
        for i in range(seat.slots)
    )


async def end_of(running: RunningRanks, local_rank: int, watch: RankWatch, startup_grace_s: float) -> RankEnd:
    """How a rank ended, with what its stderr and the kernel say; a rank without an exit died with its keeper.

    `startup_grace_s`: one that lived for so long counts as ready.
    """
    command = running.commands[local_rank]
    rank = running.assignment.seat.first_rank + local_rank
    known = running.exits.get(local_rank)
    log = str(Path(command.stderr_path).parent)
    if known is None:
        return RankEnd(rank, local_rank, 0, FaultKind.STOPPED_BY_US, EndedBy.US, ended_utc=utc(), log=log)
    event, ended_utc = known
    bare = RankEnd(
        rank,
        local_rank,
        event.pid,
        None,
        event.by,
        exit_code=event.exit_code,
        signal=event.signal,
        ready=event.ran_s >= startup_grace_s or watch.is_ready(event.round, local_rank),
        ran_s=round(event.ran_s, 3),
        ended_utc=ended_utc,
        log=log,
    )
    if event.failure is not None:
        why = f"{os.strerror(event.failure.errno)}: {event.failure.path} ({event.failure.step})"
        return replace(bare, kind=FaultKind.START_FAILED, detail=why)
    if running.fenced:
        return replace(bare, kind=FaultKind.FENCED, detail="killed by the keeper at its deadline")
    return await _judged(bare, running, event, watch)


async def _judged(bare: RankEnd, running: RunningRanks, event: RankExited, watch: RankWatch) -> RankEnd:
    """With its kind, by all the evidence there is."""
    tail, recorded = await _words(running.commands[bare.local_rank], event)
    # What it recorded itself is better than what its stderr lets guess.
    error = recorded or rank_error(tail, event.exit_code, event.signal)
    facts = EndFacts(event.exit_code, event.signal, event.by, tail, oom_kill=oom_kills() > running.oom_kills)
    kind, detail = classify(facts, error)
    state, finding = watch.state(event.round, bare.local_rank)
    if state is not None:
        bare = replace(bare, extra={HANG: state_as_extra(state)})
    if finding is not None and kind is FaultKind.STOPPED_BY_US:
        kind, detail = FaultKind.HANG, finding.sentence
    lines = last_lines(tail, SHOWN_LINES) if kind is not None else ()
    return replace(bare, kind=kind, detail=detail, error=error, last_lines=lines)


async def _words(command: RankCommand, event: RankExited) -> tuple[str, PythonError | None]:
    """The end of its stderr, and the error that it recorded, as far as the disk gives them in time."""
    tail, recorded = "", None
    with anyio.move_on_after(TAIL_LIMIT_S), suppress(OSError):
        tail = await aside(_tail, command.stderr_path)
        if event.exit_code != 0:
            recorded = await aside(recorded_error, Path(command.env["TORCHELASTIC_ERROR_FILE"]))
    return tail, recorded


def _tail(path: str) -> str:
    try:
        with Path(path).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""  # the log was lost, which the keeper has warned of: the exit status is evidence enough
