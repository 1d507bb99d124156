"""What a machine is told. Events may come late and more than once; none carries an order to act.

Times named `*_s` in this room are seconds of `CLOCK_BOOTTIME` on this host, never compared across hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from nvrx_async.etcd.types import Deleted, KeyValue, Listing, Txn
from nvrx_async.job.records import Ending, Mark, RankEnd


class Now(NamedTuple):
    """The moment of a decision: `s` for deadlines, `utc` (ISO 8601) for what people read."""

    s: float
    utc: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A scope was read whole: it is known from now on, and every later change of it follows as Changed."""

    listing: Listing


@dataclass(frozen=True, slots=True)
class Changed:
    """A key in a known scope was written or is gone."""

    change: KeyValue | Deleted


@dataclass(frozen=True, slots=True)
class Committed:
    """All transactions of a Commit took effect, each at the revision beside it."""

    tag: str
    txns: tuple[tuple[Txn, int], ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A Commit did not take effect, or nobody knows. All scopes were listed anew before this event."""

    tag: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease relied on was renewed by a request sent at `sent_at_s`; ranks may live before `good_until_s`."""

    sent_at_s: float
    good_until_s: float


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease is gone in etcd, with all keys on it; no renewal will come."""


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """A new lease after a lost one. It holds no key yet, so its renewals move nothing before `Rely`."""

    lease: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What all that were asked at `sent_at_s` said: `objection` is empty if everybody said yes, else a sentence."""

    sent_at_s: float
    objection: str = ""


@dataclass(frozen=True, slots=True)
class Elected:
    """This agent leads while `key` stays as created at `create_revision`."""

    key: str
    create_revision: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """The candidacy `key` is gone: this agent does not lead by it any more."""

    key: str


@dataclass(frozen=True, slots=True)
class PortReserved:
    """A port for the store of rank 0 is held for this round."""

    round: int
    port: int


@dataclass(frozen=True, slots=True)
class KeeperReady:
    """A keeper waits for orders. `generation` grows with each keeper of this agent."""

    generation: int


@dataclass(frozen=True, slots=True)
class KeeperLost:
    """The keeper died. Its ranks die with it; RanksGone follows when the sweep found nothing alive."""

    generation: int


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank exited by itself or was killed. Its evidence may still be incomplete; RanksGone has all of it."""

    round: int
    end: RankEnd


@dataclass(frozen=True, slots=True)
class RankHung:
    """A rank does not get on and is to be killed. `sentence` says what it does instead, behind its name."""

    round: int
    rank: int
    sentence: str


@dataclass(frozen=True, slots=True)
class RanksHeld:
    """The ranks are held: none passes `should_stop` above `step` before StopAtStep. None: they do not ask."""

    round: int
    step: int | None


@dataclass(frozen=True, slots=True)
class GrowthAllowed:
    """A rank says that nodes which wait may be taken in."""

    round: int


@dataclass(frozen=True, slots=True)
class RanksGone:
    """No process of this round lives here any more, and all output was read to its end.

    `unkillable` names local ranks of which a process outlived SIGKILL by 10 s (then "gone" is not true of them).
    `learned`: limits in seconds for the hang detection of the next round. `marks`: moments of the start.
    `imports`: what ranks were seen to import, for spares.
    `progress`: how far they came, as in `records.PROGRESS`.
    """

    round: int
    ends: tuple[RankEnd, ...]
    unkillable: tuple[int, ...] = ()
    learned: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[Mark, float] = field(default_factory=dict)
    imports: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, float] = field(default_factory=dict)


class Proof(Enum):
    """What this host can tell of the process behind a registration."""

    DEAD = "dead"
    ALIVE = "alive"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Proven:
    """Answer to ProveDead. DEAD also says that nothing that process started lives; UNKNOWN: not of this host."""

    incarnation: str
    proof: Proof
    evidence: str


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """A person or the scheduler asked this agent to stop (`signal` as number).

    `agree_until_s`: so long all ranks of the job may take to reach one step and save; 0 for not at all.
    `ending`: what it is called if every agent leaves.
    """

    signal: int
    agree_until_s: float = 0.0
    ending: Ending = Ending.CANCELLED


@dataclass(frozen=True, slots=True)
class StopWanted:
    """The job is to end at one step of all ranks, if they ask for one: its time runs out. It can be tried again.

    `within_s`: so long they may take to reach it and to save; then those that still run get SIGTERM. `exit_code`: of
    the job.
    """

    reason: str
    within_s: float
    exit_code: int


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment asked for by `Decision.wake_at_s` has come."""


Event: TypeAlias = (
    Listed
    | Changed
    | Committed
    | Refused
    | Renewed
    | LeaseLost
    | LeaseGranted
    | Answered
    | Elected
    | Deposed
    | PortReserved
    | KeeperReady
    | KeeperLost
    | RankEnded
    | RankHung
    | RanksHeld
    | GrowthAllowed
    | RanksGone
    | Proven
    | LeaveRequested
    | StopWanted
    | Tick
)
