"""A training of `chaos_rank.py` on a stage: waiting for what its ranks note."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from support.stage import Stage
from support.worlds import Entry, prepare, recorded

RANK_PROGRAM = str(Path(__file__).with_name("chaos_rank.py"))
BOUND_S = 50.0
LOOK_S = 0.05


class Training:
    """The folder of the training, and the stage that its agents are on."""

    def __init__(self, on: Stage) -> None:
        self.stage = on
        self.folder = on.folder / "training"
        prepare(self.folder)

    @property
    def program(self) -> tuple[str, str]:
        return RANK_PROGRAM, str(self.folder)

    @property
    def entries(self) -> list[Entry]:
        return recorded(self.folder)

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Ranks tell by files only here: look again and again."""
        ends_s = time.monotonic() + BOUND_S
        while not reached():
            assert time.monotonic() < ends_s, f"not within {BOUND_S:g} s: {what}\n{self.stage.told()}"
            self.stage.for_a_while(LOOK_S)

    def goes_on(self, number: int, count: int) -> list[Entry]:
        """Wait until so many ranks, or more, of one round from `number` on make steps; the last of each rank."""
        found: list[Entry] = []

        def reached() -> bool:
            made: dict[int, dict[int, Entry]] = {}
            for entry in self.entries:
                if entry.what == "step" and entry.round >= number:
                    made.setdefault(entry.round, {})[entry.rank] = entry
            whole = [one for one in made if len(made[one]) >= count]
            found[:] = made[max(whole)].values() if whole else []
            return bool(found)

        self.until(reached, f"{count} ranks make steps in round {number} or later")
        return found

    def end(self) -> None:
        """Ask for its end: all ranks finish after the same step."""
        (self.folder / "end").touch()
