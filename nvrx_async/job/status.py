"""How a job stands: what `nvrx ps`, `status`, `nodes` and `ranks` show. Pure, from records and live answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from nvrx_async.job.live import LiveNode, LiveRank
from nvrx_async.job.records import (
    Command,
    CommandPhase,
    Current,
    End,
    Exclusion,
    FaultKind,
    Job,
    Node,
    Outcome,
    Phase,
    RankEnd,
    Round,
    Seat,
)
from nvrx_async.job.round_record import RoundRecord

_REQUEUE = 75
_SIGNALS = 128
_POLICY = "policy"
"""`by` of an exclusion that no person asked for."""


class JobState(Enum):
    """Where a job is."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    RESTARTING = "restarting"
    FINISHED = "finished"
    FAILED = "failed"
    REQUEUE = "requeue"
    STOPPED = "stopped"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"
    """Told by a history that ends without an outcome: whatever came after it is not known."""

    @property
    def is_over(self) -> bool:
        """Nothing of the attempt runs any more."""
        return self in _OVER


_OVER = frozenset(
    {JobState.FINISHED, JobState.FAILED, JobState.REQUEUE, JobState.STOPPED, JobState.ABANDONED}
)


class Role(Enum):
    """What a node is to the round."""

    MEMBER = "member"
    SPARE = "spare"
    WAITING = "waiting"
    EXCLUDED = "excluded"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LastFault:
    """The fault that ended a round last; or, of `JobStatus.last_asked`, what somebody asked for."""

    round: int
    kind: FaultKind
    sentence: str
    at_utc: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node. `first_rank` and `group_rank` are -1 without a seat; `why` says why it is excluded or lost."""

    node_id: str
    host: str
    role: Role
    slots: int
    group_rank: int = -1
    first_rank: int = -1
    leads: bool = False
    address: str = ""
    probe: str = ""
    pid: int = 0
    registered_utc: str = ""
    incarnation: str = ""
    log_dir: str = ""
    why: str = ""
    warm: int | None = None
    etcd_ms: float | None = None


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One rank of the round. `state` is the agent's word (see `LiveRank`), or how it ended; "" if nobody tells."""

    rank: int
    local_rank: int
    node_id: str
    host: str
    state: str
    pid: int = 0
    step: int | None = None
    beat_age_s: float | None = None
    section: str = ""
    section_s: float = 0.0
    output_bytes: int = 0
    log: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as it stands in etcd at one revision, with what its agents said when they were asked.

    `since_utc`: when this state began. `waits_for`: what a round that forms is short of. `last_asked`: the round that
    ended last did so on request. `nodes` and `ranks` are empty where only a summary was asked for; `nodes_present`
    counts the registered ones.
    """

    run_id: str
    attempt: int
    state: JobState
    since_utc: str
    created_utc: str
    command: tuple[str, ...]
    round: int
    min_nodes: int
    max_nodes: int
    nodes_present: int
    world_size: int = 0
    restarts: int = 0
    max_restarts: int = 0
    lost_nodes: int = 0
    waits_for: str = ""
    last_fault: LastFault | None = None
    last_asked: LastFault | None = None
    outcome: Outcome | None = None
    nodes: tuple[NodeStatus, ...] = ()
    ranks: tuple[RankStatus, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    commands: tuple[Command, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def ended_utc(self) -> str:
        """When it ended, "" while it lives."""
        return self.outcome.decided_utc if self.outcome else ""


@dataclass(frozen=True, slots=True)
class Held:
    """What etcd holds of an attempt beside its rounds. `record` is the round that `round` speaks of.

    `fault`: the last verdict on a round that a fault ended; the one in `round` may be on a later one.
    """

    run_id: str
    current: Current
    job: Job
    round: Round
    record: RoundRecord
    fault: End | None = None
    outcome: Outcome | None = None
    nodes: Mapping[str, Node] | None = None
    nodes_present: int = 0
    joined: tuple[str, ...] = ()
    leader: str = ""
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()


def job_status(
    held: Held, live: Mapping[str, LiveNode] | None = None, silent: Sequence[str] = ()
) -> JobStatus:
    """Put it together. `live` are the agents' answers by node id, `silent` the nodes that gave none."""
    spec, ledger, now_round = held.job.spec, held.round.ledger, held.round
    state = _state(held)
    answers = live or {}
    nodes = _nodes(held, answers) if held.nodes is not None else ()
    seated = held.nodes is not None and not state.is_over and now_round.phase is Phase.RUNNING
    return JobStatus(
        run_id=held.run_id,
        attempt=held.current.attempt,
        state=state,
        since_utc=_since(held, state),
        created_utc=held.job.created_utc,
        command=spec.command,
        round=now_round.number,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        nodes_present=held.nodes_present if held.nodes is None else len(held.nodes),
        world_size=now_round.world_size,
        restarts=ledger.restarts,
        max_restarts=spec.max_restarts,
        lost_nodes=ledger.membership,
        waits_for=_waits_for(held) if state in (JobState.STARTING, JobState.RESTARTING) else "",
        last_fault=last_fault_of(held.outcome, held.fault),
        last_asked=last_asked_of(held.round.verdict),
        outcome=held.outcome,
        nodes=nodes,
        ranks=rank_statuses(held.record, answers) if seated else (),
        excluded=tuple(held.excluded[node_id] for node_id in sorted(held.excluded)),
        commands=tuple(one for one in held.commands if one.phase is CommandPhase.ASKED),
        silent=tuple(sorted(silent)),
    )


def rank_statuses(record: RoundRecord, live: Mapping[str, LiveNode]) -> tuple[RankStatus, ...]:
    """All ranks of a round: by what their agents say, else by what was reported of their ends."""
    ends = {end.rank: end for _, _, end in record.ends}
    found = []
    for seat in record.seats:
        answer = live.get(seat.node_id)
        of_round = answer is not None and answer.round == record.number
        ranks = {one.rank: one for one in answer.ranks} if answer is not None and of_round else {}
        for local_rank in range(seat.slots):
            rank = seat.first_rank + local_rank
            done = seat.node_id in record.done
            found.append(_rank(seat, local_rank, ranks.get(rank), ends.get(rank), done=done))
    return tuple(sorted(found, key=lambda one: one.rank))


def _rank(
    seat: Seat, local_rank: int, live: LiveRank | None, end: RankEnd | None, *, done: bool
) -> RankStatus:
    rank = seat.first_rank + local_rank
    if end is not None:
        state = end.kind.value if end.kind else "finished"
        return RankStatus(rank, local_rank, seat.node_id, seat.host, state, pid=end.pid, log=end.log)
    if live is None:
        return RankStatus(rank, local_rank, seat.node_id, seat.host, "finished" if done else "")
    return RankStatus(
        rank=rank,
        local_rank=local_rank,
        node_id=seat.node_id,
        host=seat.host,
        state="finished" if done else live.state,
        pid=live.pid,
        step=live.step,
        beat_age_s=live.beat_age_s,
        section=live.section,
        section_s=live.section_s,
        output_bytes=live.output_bytes,
        log=live.log,
    )


def _state(held: Held) -> JobState:
    outcome, phase = held.outcome, held.round.phase
    if outcome is not None:
        return state_of_outcome(outcome)
    present = held.nodes_present if held.nodes is None else len(held.nodes)
    if not present:
        return JobState.ABANDONED
    if phase is Phase.FORMING:
        return JobState.STARTING if held.round.number == 0 else JobState.RESTARTING
    return JobState.ENDING if held.record.interrupt is not None else JobState.RUNNING


def state_of_outcome(outcome: Outcome) -> JobState:
    """How an attempt that is over ended."""
    if outcome.success:
        return JobState.FINISHED
    if outcome.exit_code == _REQUEUE:
        return JobState.REQUEUE
    return JobState.STOPPED if outcome.exit_code > _SIGNALS else JobState.FAILED


def _since(held: Held, state: JobState) -> str:
    if held.outcome is not None:
        return held.outcome.decided_utc
    if state is JobState.RUNNING:
        return held.round.running_utc
    if state is JobState.ENDING and held.record.interrupt is not None:
        return held.record.interrupt.at_utc
    return held.round.opened_utc


def _waits_for(held: Held) -> str:
    """What a forming round is short of; who leads knows more, this is what etcd tells."""
    least = held.job.spec.min_nodes
    barred = [name for name in held.joined if name in held.excluded]
    # Those that the policy itself excluded are taken in before a round waits for others.
    held_back = [name for name in barred if held.excluded[name].by != _POLICY]
    ready = len(held.joined) - len(held_back)
    excluded = f"; excluded: {', '.join(sorted(held_back))}" if held_back else ""
    if ready < least:
        return f"{ready} of {least} nodes joined{excluded}"
    return f"{ready} nodes joined{excluded}; the coordinator seals once nothing of the round before lives"


def last_fault_of(outcome: Outcome | None, verdict: End | None) -> LastFault | None:
    """The fault that ended the attempt, else the last round that `verdict` speaks of; what was asked for is none."""
    if outcome is not None and outcome.root is not None and outcome.root.kind is not FaultKind.ASKED:
        root, number, at_utc = outcome.root, outcome.round, outcome.decided_utc
    elif verdict is not None and is_fault(verdict):
        root, number, at_utc = verdict.root, verdict.number, verdict.ended_utc
    else:
        return None
    ended = root.end.ended_utc if root.end is not None and root.end.ended_utc else at_utc
    return LastFault(number, root.kind, root.sentence, ended)


def last_asked_of(verdict: End | None) -> LastFault | None:
    """What the round that ended last ended for, if somebody asked for it."""
    if verdict is None or is_fault(verdict):
        return None
    return LastFault(verdict.number, verdict.root.kind, verdict.root.sentence, verdict.ended_utc)


def is_fault(verdict: End) -> bool:
    """Whether a round ended by a fault, and not on request."""
    return verdict.root.kind is not FaultKind.ASKED


def _nodes(held: Held, live: Mapping[str, LiveNode]) -> tuple[NodeStatus, ...]:
    """Members in order of their ranks, then the others by name."""
    present = held.nodes or {}
    seats = {seat.node_id: seat for seat in held.record.seats}
    spares = {spare.node_id for spare in held.record.spares}
    over = held.outcome is not None
    found = []
    for node_id, node in present.items():
        seat = seats.get(node_id)
        seated = seat is not None and seat.incarnation == node.incarnation
        excluded = held.excluded.get(node_id)
        role = Role.MEMBER if seated else Role.SPARE if node_id in spares else Role.WAITING
        if excluded is not None and not seated:
            role = Role.EXCLUDED
        found.append(
            _node(node, role, seat if seated else None, excluded, held.leader == node_id, live.get(node_id))
        )
    gone = [seat for node_id, seat in seats.items() if node_id not in present] if not over else []
    found += [
        NodeStatus(
            seat.node_id,
            seat.host,
            Role.LOST,
            seat.slots,
            seat.group_rank,
            seat.first_rank,
            why="not registered any more",
        )
        for seat in gone
    ]
    return tuple(sorted(found, key=lambda one: (one.first_rank < 0, one.first_rank, one.node_id)))


def _node(
    node: Node,
    role: Role,
    seat: Seat | None,
    excluded: Exclusion | None,
    leads: bool,  # noqa: FBT001 - one of the figures of a row
    live: LiveNode | None,
) -> NodeStatus:
    return NodeStatus(
        node_id=node.node_id,
        host=node.host,
        role=role,
        slots=node.slots,
        group_rank=seat.group_rank if seat else -1,
        first_rank=seat.first_rank if seat else -1,
        leads=leads,
        address=node.address,
        probe=node.probe,
        pid=node.process.pid,
        registered_utc=node.registered_utc,
        incarnation=node.incarnation,
        log_dir=str(node.extra.get("log_dir", "")),
        why=f"{excluded.why} ({excluded.by})" if excluded else "",
        warm=live.warm if live else None,
        etcd_ms=live.etcd_ms if live else None,
    )
