"""Log folders near the one that was named: several nodes', other jobs', or the one around it; and what to type."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import orjson

from nvrx_async.job.names import nearest

HISTORY: Final = "history.jsonl"
_MOST_ENTRIES = 1000
"""So many entries of a folder are looked at: somebody may have named a home directory."""
_MOST_NAMED = 4
_ABOVE = 3
"""A rank's folder lies so far below its job's."""


@dataclass(frozen=True, slots=True)
class Lying:
    """A job's log folder. `log_dir`: what names it; `size`: bytes of its history, the longest of which knows most."""

    run_id: str
    log_dir: Path
    size: int


def hint_for(root: Path, run_id: str, verb: Sequence[str]) -> str:
    """What to type instead, "" where nothing is near. `verb`: the words before `--log-dir`, with JOB as `{job}`.

    Blocks: looks into the folder and those in it.
    """
    around = next((one for one in [root, *root.parents[:_ABOVE]] if (one / HISTORY).is_file()), None)
    if around is not None:
        job = job_of(around)
        name = around.parent if around.name == job else around
        what = "it is the folder of" if around == root else "it lies in the folder of"
        return f"{what} job {job}: {_command(verb, job, name)}"
    found = list(lying(root))
    mine = sorted((one for one in found if one.run_id == run_id), key=lambda one: -one.size)
    if mine or (not run_id and found):
        mine = mine or sorted(found, key=lambda one: -one.size)
        folders = list(dict.fromkeys(one.log_dir for one in mine))
        more = f" (also {_names(folders[1:])})" if len(folders) > 1 else ""
        knows = ", whose history is the longest" if more and run_id else ""
        whose = f"job {run_id}" if run_id else "jobs"
        where = (
            f"folders of {whose} lie in {len(folders)} of its folders" if more else f"{whose} lies one deeper"
        )
        return f"{where}: {_command(verb, run_id, folders[0])}{knows}{more}"
    if not found:
        return ""
    jobs = sorted({one.run_id for one in found})
    best = next(iter(nearest(run_id, jobs)), jobs[0])
    at = next(one.log_dir for one in found if one.run_id == best)
    listed = ", ".join(jobs[:_MOST_NAMED]) + (
        f" and {len(jobs) - _MOST_NAMED} more" if jobs[_MOST_NAMED:] else ""
    )
    return f"it holds job{'s' if len(jobs) > 1 else ''} {listed}: {_command(verb, best, at)}"


def lying(root: Path) -> Iterator[Lying]:
    """Job folders in a folder, and in the folders in it."""
    for folder in _folders(root):
        own = _lying(folder)
        if own is not None:
            yield own
            continue
        yield from (found for inner in _folders(folder) if (found := _lying(inner)) is not None)


def job_of(folder: Path) -> str:
    """The job whose history lies there, by what the history says; by the folder's name where it says nothing."""
    try:
        with (folder / HISTORY).open("rb") as file:
            for line in islice(file, 50):
                raw = orjson.loads(line)
                if raw.get("record") == "registered":
                    return str(raw["process"]["tag"]).rpartition("/")[0] or folder.name
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return folder.name
    return folder.name


def _lying(folder: Path) -> Lying | None:
    try:
        size = (folder / HISTORY).stat().st_size
    except OSError:
        return None
    return Lying(folder.name, folder.parent, size)


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            found = [entry.name for entry in islice(entries, _MOST_ENTRIES) if entry.is_dir()]
    except OSError:
        return []
    return [root / name for name in sorted(found)]


def _command(verb: Sequence[str], job: str, log_dir: Path) -> str:
    words = [job if word == "{job}" else word for word in verb]
    return f"{shlex.join(['nvrx', *words])} --log-dir {shlex.quote(str(log_dir))}"


def _names(folders: Sequence[Path]) -> str:
    shown = ", ".join(folder.name for folder in folders[:_MOST_NAMED])
    return shown + (f" and {len(folders) - _MOST_NAMED} more" if len(folders) > _MOST_NAMED else "")
