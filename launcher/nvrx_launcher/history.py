"""Mirror of a job's history on this node's disk, for when etcd is gone: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from nvrx_async.job.codec import SCHEMA, encode
from nvrx_async.job.keys import Told
from nvrx_async.job.records import FaultKind, JobSpec, Phase, RankEnd
from nvrx_async.job.times import as_utc
from nvrx_async.job.unfinished import LAUNCH_ID
from nvrx_async.rounds.effects import (
    Commanded,
    Finished,
    Judged,
    Notice,
    Registered,
    RoundRunning,
    Waiting,
)
from nvrx_launcher.recorded_store import ToldRecord

FILE = "history.jsonl"
"""Its name in the job's log folder."""


class History:
    """Appends what ends a round, and the outcome. A disk that takes nothing costs the mirror, never the job."""

    def __init__(self, path: Path, spec: JobSpec | None = None, launch_id: str | None = None) -> None:
        self._file = _Appended(path)
        self._spec = spec
        self._launch_id = launch_id
        self._attempt: int | None = None

    def add(self, notice: Notice) -> None:
        """Note a notice that tells of the whole job; others are passed over. Blocks on the disk."""
        match notice:
            case Registered(node=node, attempt=attempt):
                self._attempt = attempt
                told = b'{"record":"registered","attempt":%d,' % attempt
                self._file.append(told + encode(node)[1:] + b"\n")
                if self._spec is not None:
                    launch = b'"%s":%s,' % (LAUNCH_ID.encode(), orjson.dumps(self._launch_id))
                    self._append(b"spec", b"{" + launch + encode(self._spec)[1:])
            case Judged(end=end):
                self._append(b"end", encode(end))
            case Commanded(command_id=command_id, command=command):
                told = b'{"record":"command","id":%s,' % json.dumps(command_id).encode()
                self._file.append(told + encode(command)[1:] + b"\n")
            case Finished(outcome=outcome):
                # Another attempt may have begun in this folder: whose end it is must not hang on the order of lines.
                of = b"" if self._attempt is None else b'"attempt":%d,' % self._attempt
                self._append(b"outcome", b"{" + of + encode(outcome)[1:])
            case RoundRunning(assignment=assignment) if assignment is not None:
                self._append(b"assignment", encode(assignment))
            case Waiting(sentence=sentence, outage=bool(outage)):
                about = {"schema": SCHEMA, "away": outage, "at_utc": as_utc(datetime.now(UTC))}
                self._append(b"outage", orjson.dumps({**about, "sentence": sentence}))
            case _:
                pass

    def add_end(self, number: int, end: RankEnd) -> None:
        """Note how a rank of this node ended, and who ended it. Blocks on the disk."""
        self._file.append(b'{"record":"rank_end","round":%d,' % number + encode(end)[1:] + b"\n")

    def add_told(self, told: ToldRecord) -> None:
        """Note a record of etcd that tells of moments of a round. Blocks on the disk."""
        try:
            raw = orjson.loads(told.value)
        except orjson.JSONDecodeError:
            return  # no agent wrote that: whoever needs the record says so
        if not isinstance(raw, dict):
            return
        if told.kind is Told.ROUND:
            if raw.get("phase") != Phase.RUNNING.value:
                return
            raw.pop("verdict", None)  # it stands here as the end of the round before
        else:
            raw["round"] = told.round
        if told.kind is Told.REPORT:
            ends = raw.get("ends")
            others = ends if isinstance(ends, list) and not told.own else ()
            raw["ends"] = [_brief(end) for end in others if isinstance(end, dict)]
        about = {"record": told.kind.value, "attempt": told.attempt}
        self._file.append(orjson.dumps({**about, **raw}) + b"\n")

    def _append(self, kind: bytes, value: bytes) -> None:
        self._file.append(b'{"record":"' + kind + b'",' + value[1:] + b"\n")


def _brief(end: dict[str, Any]) -> dict[str, Any]:
    """How a rank of another node ended; the last lines of one that was only stopped say nothing."""
    stopped = end.get("kind") == FaultKind.STOPPED_BY_US.value
    return {**end, "last_lines": []} if stopped else end


class HistoryThread:
    """A history that is written by another thread. `do` has a job done by it, in order, and never blocks."""

    def __init__(self, history: History, do: Callable[[Callable[[], None]], None]) -> None:
        self._history = history
        self._do = do

    def add(self, notice: Notice) -> None:
        """See `History`."""
        self._do(lambda: self._history.add(notice))

    def add_end(self, number: int, end: RankEnd) -> None:
        """See `History`."""
        self._do(lambda: self._history.add_end(number, end))

    def add_told(self, told: ToldRecord) -> None:
        """See `History`."""
        self._do(lambda: self._history.add_told(told))


class DecisionLog:
    """What this agent's machines decided and why, one sentence a line, told when it changes."""

    def __init__(self, path: Path) -> None:
        self._file = _Appended(path)

    def add(self, line: str) -> None:
        """Append a line. Blocks on the disk."""
        self._file.append(f"{line}\n".encode(errors="backslashreplace"))


class _Appended:
    """A file that is appended to until its disk takes nothing any more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._broken = False

    def append(self, data: bytes) -> None:
        if self._broken:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(data)
        except OSError:
            self._broken = (
                True  # a helper's failure: the same disk takes no rank's output, which is warned of
            )
