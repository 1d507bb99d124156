"""What a machine wants done. The interpreter does it and reports back by an event; machines do nothing themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from nvrx_async.etcd.types import Scope, Txn
from nvrx_async.job.records import Assignment, Command, End, Node, Outcome, RankEnd
from nvrx_async.rounds.events import Event, Now
from nvrx_async.rounds.promises import Peer, Question


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit these transactions in order, stopping at the first that is refused: then Committed or Refused."""

    tag: str
    txns: tuple[Txn, ...]


@dataclass(frozen=True, slots=True)
class ReservePort:
    """Hold a port for the store of rank 0: then PortReserved. Ports of earlier rounds are given back."""

    round: int


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start this node's ranks under the keeper of this generation: then RankEnded…, RanksGone."""

    assignment: Assignment
    generation: int


@dataclass(frozen=True, slots=True)
class StopRanks:
    """SIGTERM, the grace, SIGKILL; without `grace` SIGKILL at once. Then RanksGone. Never waits for etcd."""

    round: int
    grace: bool
    reason: str


@dataclass(frozen=True, slots=True)
class KillHung:
    """A hang ended the round: note what every rank does, for 2 s at most, then SIGKILL. Then RanksGone."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class HoldRanks:
    """Let no rank pass its next `should_stop` before StopAtStep, and see how far they are: then RanksHeld."""

    round: int


@dataclass(frozen=True, slots=True)
class StopAtStep:
    """Tell the ranks to stop at this step, None to go on."""

    round: int
    step: int | None


@dataclass(frozen=True, slots=True)
class ProveDead:
    """Find out whether the process behind this registration is dead, sweeping what it left: then Proven."""

    node: Node


@dataclass(frozen=True, slots=True)
class Revoke:
    """End a lease whose owner was proven dead; its keys vanish, which the watches tell."""

    lease: int


@dataclass(frozen=True, slots=True)
class Rely:
    """This lease holds the registration: its renewals move T from now on, told as Renewed, the last one at once."""

    lease: int


@dataclass(frozen=True, slots=True)
class AskPeers:
    """Ask all these agents for their promise, and try a renewal at once: then Answered, soon, with this `sent_at_s`."""

    question: Question
    peers: tuple[Peer, ...]
    sent_at_s: float


@dataclass(frozen=True, slots=True)
class Extend:
    """The ranks of this round, and no others, may live until then: all recorded agents have promised."""

    round: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Campaign:
    """Wait for leadership behind `key`, which was created at `create_revision`: Elected when first, Deposed after."""

    key: str
    create_revision: int


@dataclass(frozen=True, slots=True)
class Finish:
    """This life is over. With `again` a new one begins (new lease, new incarnation), else exit with `exit_code`."""

    exit_code: int
    reason: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell people. Never needed for the job to go on."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Registered:
    """This agent is in the attempt. `took_over` says what became of an earlier holder of its node id."""

    node: Node
    attempt: int
    took_over: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing happens until something outside does: the sentence says what is missing, since when, how long.

    `outage`: etcd does not answer; False: it does again.
    """

    sentence: str
    until_s: float | None = None
    outage: bool | None = None


@dataclass(frozen=True, slots=True)
class RoundRunning:
    """A round runs. `assignment` is None for a spare."""

    number: int
    nodes: int
    world_size: int
    assignment: Assignment | None
    why: str


@dataclass(frozen=True, slots=True)
class RankFailed:
    """A rank of this node ended the round. `where`: this node, as people know it."""

    round: int
    end: RankEnd
    where: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The round is over for a reason seen elsewhere or by the agent itself."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdict on a round: root, what happens next and why."""

    end: End


@dataclass(frozen=True, slots=True)
class Commanded:
    """A person's command was answered: who asked what and when, and what came of it."""

    command_id: str
    command: Command


@dataclass(frozen=True, slots=True)
class Finished:
    """The attempt has its outcome. `late`: it had before this agent was in it."""

    outcome: Outcome
    late: bool = False


Notice: TypeAlias = (
    Registered | Waiting | RoundRunning | RankFailed | Interrupted | Judged | Commanded | Finished
)

Effect: TypeAlias = (
    Commit
    | ReservePort
    | StartRanks
    | StopRanks
    | KillHung
    | HoldRanks
    | StopAtStep
    | ProveDead
    | Revoke
    | Rely
    | AskPeers
    | Extend
    | Campaign
    | Finish
    | Notify
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Effects to be executed now; when to decide again if no event comes; and why, in one sentence."""

    effects: tuple[Effect, ...]
    wake_at_s: float | None
    reason: str

    def __str__(self) -> str:
        """The sentence and what is done by it, for the agent's log."""
        names = ", ".join(type(one).__name__ for one in self.effects if not isinstance(one, Notify))
        return f"{self.reason} [{names}]" if names else self.reason


class Machine(Protocol):
    """Level-triggered: `observe` notes what is known, `decide` compares it with what should be.

    Machines of one life share a mirror of etcd, which the interpreter keeps; they only read it. No I/O, no
    clock of their own. An event that is lost, late or repeated changes no outcome, since every
    decision is made on what is known and every commit compares what it was decided on.
    """

    def scopes(self) -> frozenset[Scope]:
        """What must be known for the next decision; the interpreter lists and watches these and no others."""

    def observe(self, event: Event, now: Now) -> None:
        """Note an event; the mirror has seen it already."""

    def decide(self, now: Now) -> Decision:
        """What to do; effects under way are not asked for again."""
