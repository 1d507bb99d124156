"""How ranks ended, and of what kind a fault is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class FaultKind(Enum):
    """What a fault is, strongest evidence first: the order in which causes outrank each other."""

    HARDWARE = "hardware"
    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    STORAGE = "storage"
    START_FAILED = "start_failed"
    KEEPER_LOST = "keeper_lost"
    FENCED = "fenced"
    NODE_LOST = "node_lost"
    NODE_LEFT = "node_left"
    COLLECTIVE_MISSED = "collective_missed"
    HANG = "hang"
    TIMEOUT = "timeout"
    EARLY_EXIT = "early_exit"
    CONNECTION_LOST = "connection_lost"
    STOPPED_BY_US = "stopped_by_us"
    ASKED = "asked"
    """No fault: a person or the policy asked for another round, or for the end."""

    @property
    def is_membership(self) -> bool:
        """A node or its agent failed, not the training: not billed to `--max-restarts`."""
        return self in _MEMBERSHIP


_MEMBERSHIP = frozenset(
    {FaultKind.KEEPER_LOST, FaultKind.FENCED, FaultKind.NODE_LOST, FaultKind.NODE_LEFT},
)


class EndedBy(Enum):
    """Who ended a rank."""

    ITSELF = "itself"
    US = "us"
    SOMEONE_ELSE = "someone_else"


@dataclass(frozen=True, slots=True)
class PythonError:
    """The last exception a rank wrote to its stderr. `line` is 0 when the traceback names none."""

    type: str
    message: str
    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank of a round ended.

    Exactly one of `exit_code` and `signal` is set, except for a rank that could not be started (neither).
    `ready`: it had said hello or lived through the start-up grace. `ran_s`: seconds it lived.
    """

    rank: int
    local_rank: int
    pid: int
    kind: FaultKind | None
    by: EndedBy
    exit_code: int | None = None
    signal: int | None = None
    ready: bool = False
    ran_s: float = 0.0
    ended_utc: str = ""
    error: PythonError | None = None
    last_lines: tuple[str, ...] = ()
    log: str = ""
    detail: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
