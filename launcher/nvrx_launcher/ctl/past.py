"""What a job's own log folder tells of it, for when its etcd is gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from nvrx_async.etcd import EtcdError, UnavailableError
from nvrx_async.job.errors import NoSuchJobError, NoSuchRoundError
from nvrx_async.job.times import as_utc
from nvrx_launcher.ctl import look, text_jobs
from nvrx_launcher.ctl.errors import ElsewhereError, NoEtcdError
from nvrx_launcher.ctl.nearby import HISTORY, hint_for, job_of
from nvrx_launcher.ctl.place import EtcdOptions, is_of_job
from nvrx_launcher.ctl.screen import Screen, json_line
from nvrx_launcher.exit_codes import ExitCode

if TYPE_CHECKING:
    from nvrx_async.job.history import Past

FOLDER_VARIABLES = ("NVRX_LOG_DIR", "PET_LOG_DIR")
DEFAULT_FOLDER = "nvrx-logs"


async def or_past(
    verb: Callable[..., Awaitable[int]],
    options: EtcdOptions,
    run_id: str,
    screen: Screen,
    *,
    log_dir: str | None = None,
    **named: Any,
) -> int:
    """Do what the verb does; where etcd is gone, or has forgotten the job, answer from the job's log folder.

    An etcd that does not answer is named, and the exit code says so, whatever the folder told; but not one that
    only another job of this machine has, in which this one was looked for as well.
    """
    try:
        return await verb(options, run_id, screen, **named)
    except (UnavailableError, NoEtcdError, NoSuchJobError) as error:
        code = ExitCode.NEVER_READY if isinstance(error, EtcdError) else ExitCode.USAGE
        try:
            told = await anyio.to_thread.run_sync(_read, run_id, log_dir)
        except OSError as refused:
            what = f"{refused.filename} cannot be read: {refused.strerror}"
            raise ElsewhereError(what, f"ls -l {refused.filename} tells who may", code) from refused
        if told is None:
            number = named.get("number")
            words = [verb.__name__, "{job}", *([] if number is None else [str(number)])]
            await _point_elsewhere(error, run_id, log_dir, words)
            raise
        path, found = told
        if not found.events and not found.rounds:
            wrong = "was it written by another version?" if found.unread else "it is empty"
            what = f"{_cause(error)}, and {path} tells nothing of job {run_id}"
            raise ElsewhereError(what, wrong, code) from error
        _warn(error, path, screen, found.unread)
        _show(verb, found, screen, named)
        silent = isinstance(error, EtcdError) and await is_of_job(options, run_id)
        return ExitCode.NEVER_READY if silent else ExitCode.DONE


async def ps_or_past(options: EtcdOptions, screen: Screen, *, log_dir: str | None = None) -> int:
    """`nvrx ps`; where etcd is gone, the jobs whose log folders lie here."""
    try:
        return await look.ps(options, screen)
    except (UnavailableError, NoEtcdError) as error:
        root = _root(log_dir)
        found = await anyio.to_thread.run_sync(_read_all, root)
        if not found:
            await _point_elsewhere(error, "", log_dir, ["ps"])
            raise
        _warn(error, root, screen)
        told = [one.status for one in found]
        screen.emit_all("JobList", told, lambda: text_jobs.jobs(told, screen))
        return ExitCode.NEVER_READY if isinstance(error, EtcdError) else ExitCode.DONE


def folders(run_id: str, log_dir: str | None) -> tuple[Path, ...]:
    """Where this job's log folder may be, as `nvrx-launch --log-dir` has it: the folder itself, or the one above."""
    root = _root(log_dir)
    return (root / run_id, root) if root.name == run_id or log_dir else (root / run_id,)


async def _point_elsewhere(
    error: UnavailableError | NoEtcdError | NoSuchJobError, run_id: str, log_dir: str | None, words: list[str]
) -> None:
    """Say where near the named folder histories lie.

    Raises:
        ElsewhereError: they do.
    """
    root, named = _root(log_dir), log_dir or any(os.environ.get(name) for name in FOLDER_VARIABLES)
    hint = "" if not named else await anyio.to_thread.run_sync(hint_for, root, run_id, words)
    if hint:
        why = _cause(error)
        what = f"a history of job {run_id}" if run_id else "a job's folder"
        code = ExitCode.NEVER_READY if isinstance(error, EtcdError) else ExitCode.USAGE
        raise ElsewhereError(f"{why}, and {root} is not where {what} lies", hint, code) from error


def _root(log_dir: str | None) -> Path:
    given = log_dir or next((os.environ[name] for name in FOLDER_VARIABLES if os.environ.get(name)), None)
    return Path(given or DEFAULT_FOLDER)


def _cause(error: UnavailableError | NoEtcdError | NoSuchJobError) -> str:
    return error.cause if isinstance(error, EtcdError) else error.message


def _warn(
    error: UnavailableError | NoEtcdError | NoSuchJobError, path: Path, screen: Screen, unread: int = 0
) -> None:
    """Say what could not be asked, and what answers in its place, but for `unread` of its lines."""
    sys.stderr.write(f"{screen.palette.warning('warning:')} {_cause(error)}; this is what {path} remembers\n")
    if isinstance(error, EtcdError):
        sys.stderr.write("".join(f"  {fact}\n" for fact in error.evidence))
    if unread:
        lines = f"{unread} of its lines" if unread > 1 else "one of its lines"
        sys.stderr.write(f"  {lines} could not be read and may have told more\n")


def _read_all(root: Path) -> list[Past]:
    """Every job of a folder, the latest begun first."""
    from nvrx_async.job.history import past  # noqa: PLC0415 - only where etcd is gone

    found = []
    for path in root.glob(f"*/{HISTORY}"):
        try:
            if path.is_file():
                with path.open("rb") as file:
                    found.append(past(path.parent.name, file))
        except OSError as error:  # another person's, perhaps
            sys.stderr.write(f"warning: {path} cannot be read: {error.strerror}\n")
    return sorted(found, key=lambda one: one.status.created_utc, reverse=True)


def _read(run_id: str, log_dir: str | None) -> tuple[Path, Past] | None:
    from nvrx_async.job.history import past  # noqa: PLC0415 - only where etcd is gone

    for folder in folders(run_id, log_dir):
        path = folder / HISTORY
        if path.is_file() and run_id in (folder.name, job_of(folder)):
            with path.open("rb") as file:
                return path, past(run_id, file)
    return None


def _show(verb: Callable[..., Awaitable[int]], found: Past, screen: Screen, named: dict[str, Any]) -> None:
    from nvrx_launcher.ctl import text_rounds, trace  # noqa: PLC0415 - only where etcd is gone

    if verb is look.status:
        screen.emit("JobStatus", found.status, lambda: text_jobs.status(found.status, screen))
    elif verb is look.rounds:
        screen.emit_all("RoundList", found.rounds, lambda: text_rounds.rounds(found.rounds, screen))
    elif verb is look.events:
        _events(found, screen, named.get("since"))
    elif verb is trace.trace:
        trace.show(found.run_id, found.rounds, screen, named.get("number"))
    else:
        _why(found, screen, named.get("number"))


def _events(found: Past, screen: Screen, since: datetime | None) -> None:
    from nvrx_launcher.ctl import text_rounds  # noqa: PLC0415 - only where etcd is gone

    since_utc = as_utc(since) if since is not None else ""
    events = [event for event in found.events if event.at_utc >= since_utc]
    if screen.form == "json":
        sys.stdout.write("".join(json_line("JobEvent", one) + "\n" for one in events))
    else:
        screen.emit_all("EventList", events, lambda: text_rounds.events(events, screen))


def _why(found: Past, screen: Screen, asked: int | None) -> None:
    from nvrx_async.job.why import explain  # noqa: PLC0415 - only where etcd is gone
    from nvrx_launcher.ctl import text_rounds  # noqa: PLC0415 - only where etcd is gone

    by_number = {record.number: record for record in found.rounds}
    last = max(by_number, default=0)
    ended = [one.number for one in found.rounds if one.root is not None]
    number = max(ended, default=last) if asked is None else asked
    if number not in by_number:
        raise NoSuchRoundError(found.run_id, number, last)
    stands = found.outage or "what became of it is not known: its history ends here without an outcome"
    unknown = found.outcome is None and number == last
    story = explain(by_number[number], by_number.get(number + 1), stands=stands if unknown else "")
    later = found.outage if asked is None and number != last else ""
    screen.emit("Why", story, lambda: text_rounds.why(story, screen, stands=later))
