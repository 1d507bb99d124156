"""What a keeper tells its agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from nvrx_async.job.records import EndedBy


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a rank could not be started: `step` is fork, session, folder or exec, `path` what it was about."""

    errno: int
    step: str
    path: str


@dataclass(frozen=True, slots=True)
class RankStarted:
    """The rank was forked, or an idle process became it. A program that cannot be run: RankExited follows."""

    round: int
    local_rank: int
    pid: int
    warm: bool = False


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank ended, its last output is in the file. With `failure`, neither code nor signal is set.

    `by` is US if the keeper had sent SIGTERM, SIGKILL or this same signal before.
    """

    round: int
    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    by: EndedBy
    ran_s: float
    failure: StartFailure | None = None


@dataclass(frozen=True, slots=True)
class RoundGone:
    """No process of the round lives, all output is in the files; not true of the ranks in `unkillable`."""

    round: int
    unkillable: tuple[int, ...]
    lost_bytes: int


@dataclass(frozen=True, slots=True)
class Grew:
    """There is more to read in a log. Told once, and again only after `Keeper.seen`."""

    round: int
    local_rank: int
    stream: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The deadline passed: the keeper killed the round on its own."""

    round: int
    good_until_s: float


@dataclass(frozen=True, slots=True)
class StartRefused:
    """Nothing was started. `code` is generation, fence or busy."""

    round: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolWarning:
    """A log cannot be written; the rank goes on, RoundGone counts what is lost. Told once per stream."""

    round: int
    local_rank: int
    stream: str
    path: str
    error: str


@dataclass(frozen=True, slots=True)
class KeeperLost:
    """The keeper died. All that it had started is dead and reaped, but for what `alive` names.

    `round` is the one that ran, if any: it is gone, no RoundGone follows.
    """

    generation: int
    how: str
    round: int | None
    killed: tuple[str, ...]
    alive: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HookTold:
    """A sentence of a hooked process (`nvrx_launcher.warm.hook`): `kind` is imports, ready or unfit."""

    local_rank: int
    pid: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class IdleLost:
    """An idle process ended, or could not be started (`pid` 0)."""

    local_rank: int
    pid: int
    why: str


KeeperEvent: TypeAlias = (
    RankStarted
    | RankExited
    | RoundGone
    | Grew
    | Fenced
    | StartRefused
    | SpoolWarning
    | KeeperLost
    | HookTold
    | IdleLost
)
