"""Mirror of a job's history on this node's disk, for when etcd is gone: one JSON object a line."""

from __future__ import annotations

from pathlib import Path

from nvrx_async.job.codec import encode
from nvrx_async.rounds.effects import Finished, Judged, Notice, RoundRunning


class History:
    """Appends what ends a round, and the outcome. A disk that takes nothing costs the mirror, never the job."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""

    def add(self, notice: Notice) -> None:
        """Note a notice that tells of the whole job; others are passed over. Blocks on the disk."""
        match notice:
            case Judged(end=end):
                self._append(b"end", encode(end))
            case Finished(outcome=outcome):
                self._append(b"outcome", encode(outcome))
            case RoundRunning(assignment=assignment) if assignment is not None:
                self._append(b"assignment", encode(assignment))
            case _:
                pass

    def _append(self, kind: bytes, value: bytes) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b'{"record":"' + kind + b'",' + value[1:] + b"\n")
        except OSError as error:
            self.problem = f"history is not mirrored to {self._path}: {error.strerror}"
