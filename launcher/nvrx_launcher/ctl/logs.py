"""`nvrx logs`: what ranks wrote, from the log folders of this machine (or a file system that nodes share)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from nvrx_async.etcd import EtcdError
from nvrx_async.job.errors import NoSuchJobError
from nvrx_async.job.status import JobStatus
from nvrx_async.job.where import where
from nvrx_async.job.why import Why
from nvrx_launcher.ctl import text_jobs
from nvrx_launcher.ctl.errors import NoEtcdError, NothingFoundError
from nvrx_launcher.ctl.nearby import hint_for
from nvrx_launcher.ctl.past import folders
from nvrx_launcher.ctl.place import EtcdOptions, job_client
from nvrx_launcher.ctl.screen import Screen
from nvrx_launcher.ctl.text_rounds import why as story_lines
from nvrx_launcher.wording import clean

STREAMS = ("stdout", "stderr")
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Log:
    """One rank's output of one stream in a round."""

    rank: int
    stream: str
    path: Path


async def logs(
    options: EtcdOptions,
    run_id: str,
    screen: Screen,
    *,
    rank: int | None,
    number: int | None,
    follow: bool,
    errors: bool,
    lines: int,
    log_dir: str | None,
) -> int:
    """Show the last lines of every rank, or of one; with `errors` the first error ahead of what followed from it."""
    status, story, told = await _known(options, run_id, number, errors=errors)
    roots = [Path(log_dir), *folders(run_id, log_dir)] if log_dir else []
    roots += map(Path, told)
    roots += folders(run_id, None) if not log_dir else ()
    attempt = status.attempt if status else None
    found = await anyio.to_thread.run_sync(_find, roots, attempt, number, rank)
    if errors:
        return _show_errors(found, story, screen, lines)
    if not found:
        message, hint = _nothing(run_id, rank, number, status, roots)
        words = ["logs", "{job}", *([] if rank is None else ["--rank", str(rank)])]
        near = await anyio.to_thread.run_sync(hint_for, Path(log_dir), run_id, words) if log_dir else ""
        raise NothingFoundError(message, near or hint)
    many = len({log.rank for log in found}) > 1
    shown = {log.path: _show(log, screen, many=many, lines=lines) for log in found}
    if follow:
        from nvrx_launcher.ctl.ending import ended  # noqa: PLC0415 - seldom asked for
        from nvrx_launcher.ctl.follow import follow as followed  # noqa: PLC0415 - seldom asked for

        def look() -> tuple[list[Path], list[Log]]:
            if number is not None:
                return [], found
            # A round that ends meanwhile is followed to its end too.
            return _folders(roots), [*found, *_find(roots, None, None, rank)]

        def write(log: Log, added: list[bytes]) -> None:
            texts = (line.decode("utf-8", "replace") for line in added)
            screen.lines(_prefixed(log, text, screen, many=many) for text in texts)

        ends: list[JobStatus | None] = []

        async def over() -> None:
            ends.append(
                await ended(options if status else None, run_id, roots, attempt=attempt, number=number)
            )

        await followed(look, shown, write, over)
        if ends[0] is not None:  # apart from what ranks wrote: a pipe gets their lines only
            sys.stderr.write(text_jobs.ending(ends[0], screen) + "\n")
    return 0


async def _known(
    options: EtcdOptions, run_id: str, number: int | None, *, errors: bool
) -> tuple[JobStatus | None, Why | None, tuple[str, ...]]:
    """What etcd tells, as far as it is there: folders of nodes, and the cause of the round's end."""
    try:
        async with job_client(options, run_id) as job:
            status = await job.status(live=False)
            return status, await job.why(number) if errors else None, await job.log_folders()
    except (EtcdError, NoEtcdError, NoSuchJobError):
        return None, None, ()  # the folder may still be there; if it is not, the error names both


def _find(roots: Sequence[Path], attempt: int | None, number: int | None, rank: int | None) -> list[Log]:
    """Logs of one round, in order of ranks; by default of the last one that was begun."""
    found: dict[tuple[int, str], Log] = {}
    for root in dict.fromkeys(roots):
        for folder in _round_folders(root, attempt, number):
            for log in _of_round(folder, rank):
                found.setdefault((log.rank, log.stream), log)
    # What was said last is read first: a traceback stands below what its rank did until then.
    return sorted(found.values(), key=lambda log: (log.rank, STREAMS.index(log.stream)))


def _round_folders(root: Path, attempt: int | None, number: int | None) -> list[Path]:
    attempts = _numbered(root, "attempt_")
    chosen = attempts.get(attempt if attempt is not None else max(attempts, default=0))
    if chosen is None:
        return []
    rounds = _numbered(chosen, "round_")
    last = rounds.get(number if number is not None else max(rounds, default=0))
    return [last] if last is not None else []


def _folders(roots: Sequence[Path]) -> list[Path]:
    """Where something may appear when a round begins: the newest folder of each depth."""
    found = [root for root in dict.fromkeys(roots) if root.is_dir()]
    for root in list(found):
        rounds = _round_folders(root, None, None)
        found += _numbered(root, "attempt_").values()
        found += [*rounds, *(rank for folder in rounds for rank in _numbered(folder, "rank_").values())]
    return found


def _of_round(folder: Path, rank: int | None) -> Iterator[Log]:
    for number, path in sorted(_numbered(folder, "rank_").items()):
        if rank is None or number == rank:
            for stream in STREAMS:
                if (path / f"{stream}.log").is_file():
                    yield Log(number, stream, path / f"{stream}.log")


def _numbered(folder: Path, prefix: str) -> dict[int, Path]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return {}
    names = {entry.name.removeprefix(prefix): entry for entry in entries if entry.name.startswith(prefix)}
    return {int(name): entry for name, entry in names.items() if name.isdecimal()}


def _nothing(
    run_id: str, rank: int | None, number: int | None, status: JobStatus | None, roots: Sequence[Path]
) -> tuple[str, str]:
    what = f"rank {rank}" if rank is not None else "any rank"
    of = f" in round {number}" if number is not None else ""
    looked = ", ".join(str(root) for root in dict.fromkeys(roots))
    hint = f"looked in {looked}; logs lie on the node that ran the rank: --log-dir names another folder"
    if status and rank is not None:
        at = next((where(one.node_id, one.host) for one in status.ranks if one.rank == rank), None)
        hint = (
            f"rank {rank} runs on {at}: run nvrx logs there, or where its log folder is mounted"
            if at
            else hint
        )
    return f"no log of {what} of job {run_id}{of} is on this machine", hint


def _show(log: Log, screen: Screen, *, many: bool, lines: int) -> int:
    """The last lines of a log; returns how many bytes of it were read."""
    with log.path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - _TAIL_BYTES))
        data = file.read()
    text = data.decode("utf-8", "replace")
    shown = text.splitlines()[-lines:] if lines else text.splitlines()
    screen.lines(_prefixed(log, line, screen, many=many) for line in shown)
    return max(0, size - _TAIL_BYTES) + len(data)


def _prefixed(log: Log, line: str, screen: Screen, *, many: bool) -> str:
    text = clean(line) if screen.terminal else line
    text = screen.palette.warning(text) if log.stream == "stderr" and not many else text
    return f"{screen.palette.quiet(f'[rank {log.rank}]')} {text}" if many else text


def _show_errors(found: Sequence[Log], story: Why | None, screen: Screen, lines: int) -> int:
    """The culprit's own story, then the last lines that others wrote to stderr."""
    culprit = story.root.end.rank if story and story.root and story.root.end else None
    if story is not None:
        screen.lines(story_lines(story, screen))
    wrote = [log for log in found if log.stream == "stderr" and log.path.stat().st_size]
    first = [log for log in wrote if log.rank == culprit]
    rest = [log for log in wrote if log.rank != culprit]
    for title, part in (("the first error", first), ("what followed", rest)):
        if part:
            screen.lines(["", screen.palette.path(f"{title}:")])
        for log in part:
            _show(log, screen, many=True, lines=lines)
    if story is None and not wrote:
        raise NothingFoundError("no errors were found", "no rank on this machine wrote to stderr")
    return 0
