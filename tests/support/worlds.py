"""Whether there was at most one world at any time, from what every rank of a run has noted (`chaos_rank.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.chaos_rank import BEGINNING, Saved, undisturbed


@dataclass(frozen=True)
class Entry:
    """A rank's start, or a step that it has made. `at_s`: seconds of CLOCK_BOOTTIME, one clock for all namespaces."""

    what: str
    round: int
    rank: int
    step: int
    at_s: float
    pid: int
    node: str


@dataclass(frozen=True)
class Frozen:
    """A whole node that stood still from a moment on: nothing could kill its ranks, and no rule can fence them."""

    node: str
    since_s: float
    pids: frozenset[int]

    def covers(self, entry: Entry) -> bool:
        return entry.pid in self.pids and entry.at_s >= self.since_s


def prepare(folder: Path) -> None:
    """The folders that ranks note and save in."""
    for name in ("record", "saved", "based"):
        (folder / name).mkdir(parents=True)


def recorded(folder: Path) -> list[Entry]:
    """All entries so far, by time. A line that a rank died over is left out."""
    found: list[Entry] = []
    for path in (folder / "record").iterdir():
        lines = path.read_text().splitlines()
        found += [Entry(**json.loads(line)) for line in lines if line.endswith("}")]
    return sorted(found, key=lambda entry: entry.at_s)


def overlaps(entries: Iterable[Entry], frozen: Sequence[Frozen] = ()) -> list[str]:
    """Where a rank was at work although a rank of a later round had started already; none is what must be.

    What a whole node does that was frozen is told of by `after_waking`.
    """
    found: list[str] = []
    newest: Entry | None = None
    for entry in entries:
        if any(one.covers(entry) for one in frozen):
            continue
        if newest is not None and entry.round < newest.round:
            found.append(f"{entry} after {newest}")
        if newest is None or entry.round > newest.round:
            newest = entry
    return found


def after_waking(entries: Sequence[Entry], frozen: Sequence[Frozen]) -> list[Entry]:
    """What woken ranks of a round that is over still did; each at most finishes the step that it was in."""
    found = []
    for entry in entries:
        if any(one.covers(entry) for one in frozen):
            later = any(other.round > entry.round and other.at_s < entry.at_s for other in entries)
            found += [entry] if later else []
    return found


def misled(folder: Path, world_size: int) -> list[str]:
    """What rounds went on from that they must not have: a wrong state, or less than the round before had."""
    found: list[str] = []
    bases = sorted((int(path.name), path) for path in (folder / "based").iterdir() if path.name.isdigit())
    before = BEGINNING
    for number, path in bases:
        base = Saved(**json.loads(path.read_text()))
        if base.state != undisturbed(base.step, world_size):
            found.append(f"round {number} went on from a state that no run has: {base}")
        if base.step < before.step or base.round >= number:
            found.append(f"round {number} went on from {base}, an earlier one from {before}")
        before = base
    return found


def result(folder: Path) -> tuple[int, bool]:
    """Steps of the finished training, and whether it ended as one that nothing ever happened to."""
    told = json.loads((folder / "result").read_text())
    return told["step"], told["state"] == undisturbed(told["step"], told["world"])
