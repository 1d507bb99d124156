"""The short form of `make chaos`: random faults in a whole job, and at most one world at any time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import netspaces
from support.worlds import Entry, Frozen, after_waking, overlaps

PROGRAM = Path(__file__).with_name("chaos.py")


@pytest.mark.timeout(240)
def test_whatever_happens_the_training_ends_as_if_nothing_had() -> None:
    if not netspaces.possible():
        pytest.skip("network namespaces may not be made here")
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), "--seconds", "40", "--seed", "7"],
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


# The checker itself -------------------------------------------------------------------------------------------


def entry(number: int, at_s: float, *, node: str = "n0", pid: int = 7, what: str = "step") -> Entry:
    return Entry(what, number, 0, 3, at_s, pid, node)


def test_a_step_after_the_next_rounds_start_is_two_worlds() -> None:
    assert overlaps([entry(0, 1.0), entry(1, 2.0, pid=8, what="start"), entry(1, 3.0, pid=8)]) == []
    assert len(overlaps([entry(0, 1.0), entry(1, 2.0, pid=8, what="start"), entry(0, 2.5)])) == 1


def test_a_rank_that_woke_with_its_whole_node_is_told_of_apart() -> None:
    entries = [entry(0, 1.0), entry(1, 2.0, node="n1", pid=8), entry(0, 2.5), entry(0, 2.6, pid=9)]
    frozen = [Frozen("n0", 1.5, frozenset({7}))]
    assert overlaps(entries, frozen) == [f"{entries[3]} after {entries[1]}"]
    assert after_waking(entries, frozen) == [entries[2]]
