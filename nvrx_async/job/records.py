"""Records of a job as etcd holds them: frozen, versioned, readable by a person (`etcdctl get --prefix`).

Times named `*_utc` are ISO 8601 in UTC; they are for people. No decision compares clocks of two machines.
`extra` holds fields of newer versions, kept when a record is written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

LIMITS = "limits"
"""Key of `extra` of rounds, assignments and reports: what hang detection has learned, seconds by kind."""


MARKS = "marks"
"""Key of `extra` of joins, reports and dones: when what happened to that node's ranks, `<what>_utc` by `Mark`."""

OF_ROUND = "of_round"
"""Key of a verdict's `extra`: what the round it ends was (`opened_utc`, `running_utc`, `token`, `world_size`, …)."""

PROBES = "probes"
"""Key of the first shard's `extra` of a world: at which address each recorded agent answers questions, by node id."""

FIRST_PROBE = "first_probe"
"""Key of an assignment's `extra`: at which address the agent of rank 0 answers questions."""

IMPORTS = "imports"
"""Key of `extra` of rounds, assignments and reports: modules that ranks imported: file, variables changed before."""

REGISTERED = "registered"
"""Key of an assignment's `extra`: when its agent registered (`at_utc`), and as whose successor (`succeeds`)."""

STOP = "stop"
"""Key of a round's `extra`: how far an agreed stop has come, as in `Stop`."""

PROGRESS = "progress"
"""Key of a report's `extra`: how far its ranks came: `step`, the highest that one reported, and `file_s`, when the
file of `--progress-file` was last written; `finished`: none was told to stop before its last step."""

COMMANDS = "commands"
"""Key of a round's `extra`: the latest commands that were answered, by id, for the consoles of all agents."""


class Phase(Enum):
    """Where a round is."""

    FORMING = "forming"
    RUNNING = "running"
    ENDED = "ended"


class Level(Enum):
    """How deep the next try cuts, mildest first."""

    IN_PROCESS = "in_process"
    IN_JOB = "in_job"
    REPLACE_NODE = "replace_node"
    REQUEUE = "requeue"
    STOP = "stop"


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


class Mark(Enum):
    """Moments of a round on one node. Of several ranks the last one counts; without the rank link some are unknown.

    In the order in which they come: ready to join; orders to start the ranks, processes there, hello said,
    start-up over, first step begun; a fault seen here, told of a fault (whosever), ranks told to stop, none
    of them left.
    """

    JOINED = "joined"
    RELEASED = "released"
    STARTED = "started"
    HELLO = "hello"
    READY = "ready"
    FIRST_STEP = "first_step"
    FAULT = "fault"
    TOLD = "told"
    STOPPING = "stopping"
    GONE = "gone"
    REPORTED = "reported"


class EndedBy(Enum):
    """Who ended a rank."""

    ITSELF = "itself"
    US = "us"
    SOMEONE_ELSE = "someone_else"


@dataclass(frozen=True, slots=True)
class Current:
    """Which attempt of the job is the living one."""

    attempt: int
    since_utc: str
    extra: Mapping[str, Any] = field(default_factory=dict)


class Grow(Enum):
    """When nodes that wait are taken in while a round runs on fewer than MAX."""

    NOW = "now"
    AT_FAULT = "at-fault"
    WHEN_ASKED = "when-asked"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a job does about faults and arrivals, beyond `--max-restarts`. A limit of 0 is none.

    Windows are counted in seconds in which ranks ran, as reported by their nodes: no clocks are compared.

    Attributes:
        grow: when waiting nodes are taken in.
        grow_pause_s: how long a round runs at least before it is ended for growth.
        spares: nodes that are to wait beyond MAX; fewer are told of.
        restart_limit: restarts within `restart_window_s`; one more ends the job.
        progress_limit: rounds in a row that may end by a fault without getting beyond the best before.
        culprit_limit: a node that was to blame so often, of late, is replaced where a spare waits.
        node_loss_limit: losses of nodes within `restart_window_s`; one more ends the attempt.
    """

    grow: Grow = Grow.NOW
    grow_pause_s: float = 30.0
    spares: int = 0
    restart_limit: int = 0
    restart_window_s: float = 3600.0
    progress_limit: int = 0
    culprit_limit: int = 2
    node_loss_limit: int = 100
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What all agents of a job must agree on."""

    command: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    max_restarts: int
    lease_ttl_s: int
    kill_time_s: float
    outage_limit_s: float
    join_timeout_s: float
    last_call_s: float
    policy: Policy = Policy()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """Key `job`. `launch_id` names one launch by a scheduler, None when nothing tells."""

    spec: JobSpec
    launch_id: str | None
    created_utc: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Process:
    """Which process an agent is, for a successor on its host to prove dead. `start_ticks`: 22nd in `/proc/<pid>/stat`.

    All that it starts has `tag` in its environment, and holds its sign of life in `net_namespace` ("" without one).
    """

    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
    tag: str = ""
    net_namespace: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """Key `nodes/<node_id>`, on the agent's lease.

    `incarnation` is new for each life (one lease) of an agent. `succeeds` names the incarnation on this
    host that this agent proved dead, nothing it started living on. `order` is the wished place among
    nodes (`--node-rank`, Slurm's node id), None when nobody said. `probe` is `host:port` where the agent
    answers questions of its peers and of `nvrx`, empty when it answers none.
    """

    node_id: str
    incarnation: str
    host: str
    address: str
    slots: int
    process: Process
    registered_utc: str
    succeeds: str | None = None
    order: int | None = None
    probe: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the attempt has spent and seen, carried from round to round.

    Attributes:
        restarts: faults of a training that ran.
        start_failures: faults before a rank was ready.
        membership: nodes or agents lost.
        last_fingerprint: of the last fault that was not of membership.
        restart_ages_s: seconds of training since each restart within the window, oldest first.
        loss_ages_s: the same of lost nodes.
        best_step: highest step that a rank reported, -1 for none.
        best_file_s: latest time at which the progress file was written, 0 for never.
        standstill: rounds in a row that ended by a fault without progress.
        culprits: rounds in which a node was to blame, of late, by node id.
    """

    restarts: int = 0
    start_failures: int = 0
    membership: int = 0
    last_fingerprint: str | None = None
    restart_ages_s: tuple[float, ...] = ()
    loss_ages_s: tuple[float, ...] = ()
    best_step: int = -1
    best_file_s: float = 0.0
    standstill: int = 0
    culprits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Round:
    """Key `round`. `token` names the seal of a running round; `why` tells people why this round is.

    `sealed_in`: the round under which the seal of `token` (while forming: of `previous_token`) stands, an earlier
    one when nobody moved; -1: this one (while forming: the one before). The store of rank 0 listens on `master_*`.
    `verdict` is the one on the round before, of an ended round its own: all follow this key, none reads another.
    """

    number: int
    phase: Phase
    opened_utc: str
    running_utc: str = ""
    token: str | None = None
    previous_token: str | None = None
    sealed_in: int = -1
    master_address: str = ""
    master_port: int = 0
    world_size: int = 0
    nodes: int = 0
    ledger: Ledger = Ledger()
    why: str = ""
    verdict: End | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Join:
    """Key `rounds/<n>/join/<node_id>`: ready for n, and no process of this agent lives in a round before n."""

    node_id: str
    incarnation: str
    address: str
    master_port: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a world. Ranks first_rank … first_rank + slots - 1 are its own."""

    node_id: str
    incarnation: str
    host: str
    group_rank: int
    first_rank: int
    slots: int


@dataclass(frozen=True, slots=True)
class Spare:
    """An agent that waits, ready, without ranks."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class WorldShard:
    """Key `rounds/<n>/seal/<token>/world/<shard>`: a slice of the world, at most SEATS_PER_SHARD seats."""

    shard: int
    shards: int
    seats: tuple[Seat, ...]
    spares: tuple[Spare, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)


SEATS_PER_SHARD = 4000
"""Keeps a shard below 1 MiB, etcd's value limit being 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Key `rounds/<n>/seal/<token>/assign/<node_id>`: all that this incarnation needs to start its ranks.

    `process` is the agent's: this key outlives its lease, so a later agent on the host can prove it dead.
    """

    round: int
    seat: Seat
    world_size: int
    group_world_size: int
    master_address: str
    master_port: int
    process: Process | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Key `interrupt/<n>`: the round is over, and who said so on what evidence."""

    by: str
    kind: FaultKind
    node_id: str
    reason: str
    at_utc: str
    rank: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """Key `rounds/<n>/faults/<node_id>`: what a member saw, once nothing of it runs in the round.

    `unfit`: a process of the round survives SIGKILL; the node cannot join again. `join`: it joins round n + 1 in
    the same step, on the same terms as by a key: who has no `nodes/` key of that incarnation does not.
    """

    node_id: str
    incarnation: str
    host: str
    ends: tuple[RankEnd, ...]
    kind: FaultKind | None = None
    detail: str = ""
    unfit: bool = False
    join: Join | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """Key `rounds/<n>/done/<node_id>`: all ranks of this agent exited with 0."""

    node_id: str
    incarnation: str
    extra: Mapping[str, Any] = field(default_factory=dict)


class StopPhase(Enum):
    """How far an agreed stop has come."""

    ASKED = "asked"
    AGREED = "agreed"
    REFUSED = "refused"


class Purpose(Enum):
    """What an agreed stop is for, weakest first: one that is under way may be put to a stronger use."""

    LEAVE = "leave"
    """An agent leaves; the others may go on without it."""
    RENEW = "renew"
    """Another round follows: restart, growth, a node that is drained."""
    FINISH = "finish"
    """The job ends."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Key `rounds/<n>/stop`: somebody wants all ranks to stop.

    The answer stands in the round itself (`extra`, key STOP), which every agent follows.
    """

    by: str
    reason: str
    phase: StopPhase = StopPhase.ASKED
    step: int = -1
    purpose: Purpose = Purpose.LEAVE
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopVote:
    """Key `rounds/<n>/stops/<node_id>`: no rank of this agent has asked about a step above `step`.

    None: its ranks do not ask. Until the stop is decided none of them goes on at a higher step.
    """

    node_id: str
    incarnation: str
    step: int | None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Root:
    """The fault chosen as cause of a round's end. `culprit` is False when nobody can be blamed.

    `fingerprint` is equal for two occurrences of the same error at the same place, None when the error
    may go away by itself.
    """

    kind: FaultKind
    sentence: str
    node_id: str | None = None
    host: str | None = None
    culprit: bool = True
    end: RankEnd | None = None
    fingerprint: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """Key `rounds/<n>/end`: verdict on a round."""

    number: int
    root: Root
    level: Level
    reason: str
    ended_utc: str
    extra: Mapping[str, Any] = field(default_factory=dict)


class Ending(Enum):
    """In which way an attempt ended."""

    FINISHED = "finished"
    FAILED = "failed"
    INFRASTRUCTURE = "infrastructure"
    CANCELLED = "cancelled"
    """By a person: Ctrl-C, a terminal that went away, `nvrx stop`."""
    PREEMPTED = "preempted"
    """By SIGTERM, which schedulers send."""
    TIME_LIMIT = "time_limit"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Key `outcome`: the attempt's final verdict; all agents exit with `exit_code`."""

    success: bool
    exit_code: int
    reason: str
    round: int
    decided_utc: str
    launch_id: str | None = None
    root: Root | None = None
    ending: Ending | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class Verb(Enum):
    """What a person may ask of a running job."""

    STOP = "stop"
    RESTART = "restart"
    GROW = "grow"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    EXCLUDE = "exclude"


class CommandPhase(Enum):
    """How far a command has come."""

    ASKED = "asked"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Command:
    """Key `control/<id>`: what a person asks of the job, carried out once.

    Whoever asks creates the key; the coordinator writes effect and answer in one transaction. `by` names
    the person (`user@host`), `node_id` the node that drain, undrain and exclude are about, `answer` is a
    sentence for the person.
    """

    verb: Verb
    by: str
    reason: str
    asked_utc: str
    node_id: str | None = None
    phase: CommandPhase = CommandPhase.ASKED
    answer: str = ""
    answered_utc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Key `excluded/<node_id>`: this node takes no seat; `until_utc` is empty when nobody set an end."""

    node_id: str
    why: str
    by: str
    since_utc: str
    until_utc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Struck:
    """Key `rounds/<n>/struck/<node_id>`: a recorded agent that nobody needs to ask any more, and why.

    `proven`: a later agent on its host proved it dead, and that nothing it had started lives.
    """

    node_id: str
    incarnation: str
    why: str
    proven: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
