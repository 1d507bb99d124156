"""What an agent tells of its ranks when it is asked on its probe port: numbers that never go through etcd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LIVE = "live"
"""Kind of the question."""

REACHED = "reached"
"""Kind of another: have all ranks of a `round` here come to `step`? It is answered when they have, `{"reached": true}`,
or after `within_s`, `{"reached": false}`."""

REACHED_WITHIN_S = 20.0
"""How long such a question waits before it is asked again: what is gone without a word costs no longer."""


@dataclass(frozen=True, slots=True)
class LiveRank:
    """One rank, seen by its agent.

    `state`: starting (no hello yet), running, done (said that training is over) or ended. `step`: the last one it
    reported. `beat_age_s`: since its last report. `section`: its innermost open section but "step", open for
    `section_s`. `output_bytes`: of stdout and stderr. `log`: folder of its output. None: not known, as of
    a rank without the rank link. `late_by`: the deadline that comes first, as a clause ("is still in section save");
    this goes on for `late_since_s`, and the rank is late, hence hung, in `late_in_s` (negative: it is excused).
    """

    rank: int
    local_rank: int
    pid: int
    state: str
    step: int | None = None
    beat_age_s: float | None = None
    section: str = ""
    section_s: float = 0.0
    output_bytes: int = 0
    log: str = ""
    late_by: str = ""
    late_since_s: float | None = None
    late_in_s: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveNode:
    """An agent and its ranks. `round` is None for one without ranks.

    `etcd_ms`: how long the last renewal of the lease took. `warm`: idle processes ready for a restart. `marks`: moments
    of the round that runs, as reports carry them.
    """

    node_id: str
    round: int | None
    ranks: tuple[LiveRank, ...] = ()
    warm: int = 0
    etcd_ms: float | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
