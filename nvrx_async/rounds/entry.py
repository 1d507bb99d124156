"""How an agent enters a job: open its first or next attempt, register in the living one, or stay out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum

from nvrx_async.etcd.types import Compare, CreatedAt, Empty, Exists, ModifiedAt, Operation, Put, Scope, Txn
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import Current, Job, JobSpec, Node, Outcome, Phase, Policy, Round, Seat
from nvrx_async.job.trace import opened
from nvrx_async.rounds import predecessors
from nvrx_async.rounds.events import Now, Proof
from nvrx_async.rounds.fencing import SETTLE_S, takeover_wait_s
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.predecessors import Predecessors

NAMED = 8
"""So many nodes are named in a sentence."""

LAPSE_SLACK_S = 2.0
"""How long after a TTL an unexplained registration may stay before its holder counts as alive."""


@dataclass(frozen=True, slots=True)
class Open:
    """Begin this attempt: one transaction opens it and registers this agent."""

    keys: AttemptKeys
    node: Node
    txn: Txn


@dataclass(frozen=True, slots=True)
class Register:
    """Register in the living attempt."""

    keys: AttemptKeys
    node: Node
    txn: Txn


@dataclass(frozen=True, slots=True)
class Inside:
    """This agent is registered already: a commit whose answer was lost took effect."""

    keys: AttemptKeys
    node: Node
    revision: int


@dataclass(frozen=True, slots=True)
class Prove:
    """Ask whether the holder of this agent's node id is dead."""

    holder: Node


@dataclass(frozen=True, slots=True)
class Evict:
    """The holder of this agent's node id is dead: end its lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class Strike:
    """A member of the attempt before, which no node is in any more, is dead: say so to who would begin the next."""

    node_id: str
    txn: Txn


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing to do before `until_s` or a change. `worth_telling`: people should know although no end is known."""

    reason: str
    until_s: float | None = None
    worth_telling: bool = False


@dataclass(frozen=True, slots=True)
class Adopt:
    """This launch is over already; its verdict is this agent's too."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Refuse:
    """This agent must not enter; the message says why, with evidence and what to do."""

    message: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """The attempt that this process belonged to was replaced while it was away."""

    message: str


Entry = Open | Register | Inside | Prove | Evict | Strike | Pause | Adopt | Refuse | Superseded


class Entrance:
    """Decides how to enter, from the keys of `scopes()` and what was proven about holders of the node id."""

    def __init__(self, me: Identity, spec: JobSpec) -> None:
        self._me = me
        self._spec = spec
        self.proofs: dict[str, Proof] = {}
        self.evidence: dict[str, str] = {}
        self._dead: dict[str, str] = {}
        self._empty_since_s: float | None = None
        self._registers_in: int | None = None
        self._seen_alive: int | None = None
        self._held_since_s: dict[str, float] = {}

    def scopes(self, mirror: Mirror) -> frozenset[Scope]:
        """Only the keys this decision needs: a thousand agents that enter must not each read all others."""
        wanted = {Scope(current(self._me.run_id))}
        keys = self._keys(mirror)
        if keys is not None:
            wanted |= {Scope(keys.job), Scope(keys.outcome)}
            for node_id in self._candidate_ids(mirror, keys):
                wanted |= {Scope(keys.node(node_id)), *predecessors.seat_scopes(keys, mirror, node_id)}
            job = mirror.record(Job, keys.job)
            if job is not None and not self._same_launch(job.launch_id):
                wanted |= self._who_is_there(mirror, keys, job)
                if self._is_left(keys, mirror):
                    wanted |= predecessors.scopes(keys, mirror, self._me)
        return frozenset(wanted)

    def _who_is_there(self, mirror: Mirror, keys: AttemptKeys, job: Job) -> set[Scope]:
        """Others are followed only where they are waited for; who registers asks once whether there is anyone.

        A thousand that enter at once would each be told of all.
        """
        if self._waits_for(job):
            return {keys.nodes}
        if self._registers_in == keys.attempt:
            return set()
        empty = mirror.knows(keys.any_node) and not any(mirror.under(keys.nodes))
        return {keys.any_node, keys.nodes} if empty else {keys.any_node}

    def decide(self, now: Now, mirror: Mirror) -> Entry:
        """What to do next to enter the job."""
        if not mirror.knows(*self.scopes(mirror)):
            return Pause("reading the job's keys")
        keys = self._keys(mirror)
        if keys is None:
            return self._begin(mirror, now)
        inside = self._inside(keys, mirror)
        if inside is not None:
            return inside
        job = mirror.record(Job, keys.job)
        replaced = self._replaced(keys, job)
        if replaced is not None:
            return replaced
        outcome = mirror.record(Outcome, keys.outcome)
        if outcome is not None:
            late = self._late(keys, outcome, mirror)
            if late is not None:
                return late
            return self._open(AttemptKeys(keys.run_id, keys.attempt + 1), mirror, now, Exists(keys.outcome))
        if job is None:
            return Pause("reading the job's specification")
        if self._me.attempt is not None or self._same_launch(job.launch_id):
            return self._enter(keys, job, mirror, now)
        return self._enter_or_succeed(keys, job, mirror, now)

    def _begin(self, mirror: Mirror, now: Now) -> Entry:
        """The first attempt that etcd knows of; an earlier one that it has forgotten must be over."""
        first, earlier = AttemptKeys(self._me.run_id, self._me.first_attempt), self._me.earlier
        if earlier is None or self._me.takeover:
            return self._open(first, mirror, now)
        if self._empty_since_s is None:
            self._empty_since_s = now.s
        ready_s = self._empty_since_s + earlier.wait_s
        if now.s >= ready_s:
            return self._open(first, mirror, now)
        return Pause(
            f"etcd is new here and knows nothing of run id {first.run_id}, but {earlier.path} tells of attempt "
            f"{earlier.attempt}, which left no verdict: ranks of it may live elsewhere, {earlier.wait_s:g} s at most; "
            f"then attempt {first.attempt} begins (--takeover if you know that they are dead)",
            ready_s,
        )

    def _late(self, keys: AttemptKeys, outcome: Outcome, mirror: Mirror) -> Adopt | Prove | None:
        """The verdict of an attempt that this agent came too late for; None where it begins another one.

        It came for that attempt if its launch is the same; or it saw the attempt alive, before the verdict; or
        its predecessor was killed in it: who leaves in order takes the registration along.
        """
        if self._me.attempt is not None or self._same_launch(outcome.launch_id):
            return Adopt(outcome)
        if self._me.takeover or (outcome.launch_id is not None and self._me.launch_id is not None):
            return None
        if self._seen_alive == keys.attempt:
            return Adopt(outcome)
        for node_id in self._candidate_ids(mirror, keys):
            holder = mirror.record(Node, keys.node(node_id))
            proof = self._proof(holder) if holder is not None else Proof.UNKNOWN
            if proof is Proof.DEAD:
                return Adopt(outcome)
            if holder is not None and proof is None:
                return Prove(holder)
        return None

    def _replaced(self, keys: AttemptKeys, job: Job | None) -> Entry | None:
        """The end of an agent whose attempt or launch is not the job's any more."""
        if self._me.attempt is not None and self._me.attempt != keys.attempt:
            return Superseded(f"attempt {keys.attempt} replaced attempt {self._me.attempt}")
        if job is not None and restarted_by_scheduler(self._me.launch_id, job.launch_id):
            return Refuse(
                f"this agent belongs to launch {self._me.launch_id}, which launch {job.launch_id} of run id "
                f"{keys.run_id} has replaced\n\nhint: end what the earlier launch left on this node"
            )
        return None

    def _enter_or_succeed(self, keys: AttemptKeys, job: Job, mirror: Mirror, now: Now) -> Entry:
        if self._registers_in == keys.attempt:  # and was refused: who is there has to be read again
            self._registers_in = None
            return Pause("reading who is in the job")
        if self._is_left(keys, mirror):
            return self._succeed(keys, job, mirror, now)
        nodes = mirror.records(Node, keys.nodes)
        self._empty_since_s = None
        if self._waits_for(job):
            return Pause(
                f"launch {job.launch_id} of run id {keys.run_id} still has nodes ({', '.join(sorted(nodes))}): "
                "waiting until they are gone",
                worth_telling=True,
            )
        entry = self._enter(keys, job, mirror, now)
        self._registers_in = keys.attempt if isinstance(entry, Register) else None
        if not isinstance(entry, Refuse):
            self._seen_alive = keys.attempt
        return entry

    def _waits_for(self, job: Job) -> bool:
        """Whether another launch of the same job has to be gone first."""
        known = job.launch_id is not None and self._me.launch_id is not None
        return known and not self._same_launch(job.launch_id) and job.spec == self._spec

    def _is_left(self, keys: AttemptKeys, mirror: Mirror) -> bool:
        """Whether nobody is in the attempt. One whose place this agent made free is this agent's to go on in."""
        if self._dead or self._registers_in == keys.attempt:
            return False
        known = mirror.knows(keys.nodes) or mirror.knows(keys.any_node)
        return known and not mirror.records(Node, keys.nodes)

    def _succeed(self, keys: AttemptKeys, job: Job, mirror: Mirror, now: Now) -> Entry:
        """The attempt has no node left and no verdict: the next one may begin when its ranks are surely dead."""
        following = AttemptKeys(keys.run_id, keys.attempt + 1)
        if self._me.takeover or restarted_by_scheduler(job.launch_id, self._me.launch_id):
            return self._open(following, mirror, now, Empty(keys.nodes))
        if self._empty_since_s is None:
            self._empty_since_s = now.s
        left = predecessors.of(keys, mirror, self._me)
        unstruck = [one for incarnation, one in left.here.items() if incarnation not in left.struck]
        for one in unstruck:
            if self._proof(one) is None:
                return Prove(one)
        mine = [one for one in unstruck if self._proof(one) is Proof.DEAD]
        known = left.struck.union(one.incarnation for one in mine)
        unproven = [seat for seat in left.seats if seat.incarnation not in known]
        ready_s = self._empty_since_s + _left_wait_s(left, job.spec, all_dead=not unproven)
        if now.s >= ready_s:
            as_read = ModifiedAt(keys.round, mirror.revision(keys.round))
            return self._open(following, mirror, now, Empty(keys.nodes), as_read)
        if mine:
            why = self.evidence.get(mine[0].incarnation, "an earlier life of the same process")
            return Strike(mine[0].node_id, predecessors.strike(keys, mirror, left, mine[0], why))
        return Pause(_left_reason(keys, job.spec, unproven), ready_s)

    def _enter(self, keys: AttemptKeys, job: Job, mirror: Mirror, now: Now) -> Entry:
        if job.spec != self._spec:
            return Refuse(_different_spec(keys.run_id, job.spec, self._spec))
        for node_id in self._candidate_ids(mirror, keys):
            held = mirror.get(keys.node(node_id))
            if held is None:
                before = predecessors.seated(keys, mirror, node_id)
                if before is not None and self._proof(before) is None:
                    return Prove(before)
                proven = before is not None and self._proof(before) is Proof.DEAD
                succeeds = before.incarnation if before is not None and proven else self._dead.get(node_id)
                node = self._me.node(node_id, now.utc, succeeds=succeeds)
                return Register(keys, node, self._registration(keys, node, mirror))
            holder = mirror.record(Node, held.key)
            if holder is None:
                continue
            entry = self._judge_holder(holder, held.lease, now)
            if entry is not None:
                return entry
        raise AssertionError("the last candidate id is free by construction")

    def _inside(self, keys: AttemptKeys, mirror: Mirror) -> Inside | None:
        for node_id in self._candidate_ids(mirror, keys):
            key = keys.node(node_id)
            held, node = mirror.get(key), mirror.record(Node, key)
            if held is not None and node is not None and node.incarnation == self._me.incarnation:
                return Inside(keys, node, held.create_revision)
        return None

    def _judge_holder(self, holder: Node, lease: int, now: Now) -> Entry | None:
        """What to do about the holder of a wished id; None when it lives and the next id is to be tried."""
        proof = self._proof(holder)
        if proof is None:
            return Prove(holder)
        if proof is Proof.DEAD:
            self._dead[holder.node_id] = holder.incarnation
            return Evict(lease)
        since_s = self._held_since_s.setdefault(holder.incarnation, now.s)
        lapses_s = since_s + self._spec.lease_ttl_s + LAPSE_SLACK_S
        if proof is Proof.UNKNOWN and now.s < lapses_s:
            return Pause(f"node id {holder.node_id} is held by another agent, perhaps a dead one", lapses_s)
        if self._me.fixed_id:
            return Refuse(
                f"node id {holder.node_id} is taken by a living agent (host {holder.host}, "
                f"pid {holder.process.pid}, since {holder.registered_utc})\n\n"
                "hint: give each agent its own --node-id, or leave the option out"
            )
        return None

    def _candidate_ids(self, mirror: Mirror, keys: AttemptKeys) -> list[str]:
        """Wished id, then `<id>-2`, … : all that are held by others, and the first free one."""
        ids = [self._me.node_id]
        while not self._me.fixed_id and self._lives(mirror, keys.node(ids[-1])):
            ids.append(f"{self._me.node_id}-{len(ids) + 1}")
        return ids

    def _lives(self, mirror: Mirror, key: str) -> bool:
        holder = mirror.record(Node, key)
        if holder is None or holder.incarnation == self._me.incarnation:
            return False
        proof = self._proof(holder)
        return proof is not None and proof is not Proof.DEAD

    def _proof(self, holder: Node) -> Proof | None:
        """What is known of a holder. An earlier life of this very process is over, and its ranks with it."""
        if holder.process == self._me.process:
            return Proof.DEAD
        return self.proofs.get(holder.incarnation)

    def _open(self, keys: AttemptKeys, mirror: Mirror, now: Now, *over: Compare) -> Open:
        """Begin an attempt. `over` holds while the one before is over, however late this agent's watches are."""
        node = self._me.node(self._me.node_id, now.utc, None)
        job = Job(self._spec, self._me.launch_id, now.utc)
        trace = opened(keys.run_id, keys.attempt, 0, now.utc, self._me.incarnation)
        first = Round(0, Phase.FORMING, now.utc, why="the job begins", extra=trace)
        moved = ModifiedAt(current(keys.run_id), mirror.revision(current(keys.run_id)))
        txn = Txn(
            when=(moved, *over),
            then=(
                Put(current(keys.run_id), encode(Current(keys.attempt, now.utc))),
                Put(keys.job, encode(job)),
                Put(keys.round, encode(first)),
                *self._own_keys(keys, node),
            ),
        )
        return Open(keys, node, txn)

    def _registration(self, keys: AttemptKeys, node: Node, mirror: Mirror) -> Txn:
        return Txn(
            when=(
                ModifiedAt(current(keys.run_id), mirror.revision(current(keys.run_id))),
                CreatedAt(keys.outcome, 0),
                CreatedAt(keys.node(node.node_id), 0),
            ),
            then=self._own_keys(keys, node),
        )

    def _own_keys(self, keys: AttemptKeys, node: Node) -> tuple[Operation, ...]:
        lease = self._me.lease
        return (
            Put(keys.node(node.node_id), encode(node), lease),
            Put(keys.election(lease), encode(_Candidacy(node.node_id, node.incarnation)), lease),
        )

    def _keys(self, mirror: Mirror) -> AttemptKeys | None:
        held = mirror.record(Current, current(self._me.run_id))
        return AttemptKeys(self._me.run_id, held.attempt) if held else None

    def _same_launch(self, launch_id: str | None) -> bool:
        return launch_id is not None and launch_id == self._me.launch_id


@dataclass(frozen=True, slots=True)
class _Candidacy:
    """Value of an election key; only its create revision decides."""

    node_id: str
    incarnation: str


def _left_wait_s(left: Predecessors, spec: JobSpec, *, all_dead: bool) -> float:
    """How long an attempt that nobody is in must have been seen so before the next one begins.

    Who has no ranks harms nobody, and is still given the time to come back: after a mass loss of leases all do.
    """
    if not all_dead:
        return takeover_wait_s(spec)
    return spec.lease_ttl_s + SETTLE_S if left.spares or not left.seats else 0.0


def _left_reason(keys: AttemptKeys, spec: JobSpec, unproven: Sequence[Seat]) -> str:
    left = f"attempt {keys.attempt} of run id {keys.run_id} left no verdict and has no node"
    begins = f"attempt {keys.attempt + 1} begins"
    if not unproven:
        back_s = spec.lease_ttl_s + SETTLE_S
        return f"{left}; no rank of it lives: {begins} unless a node comes back within {back_s:g} s"
    names = ", ".join(f"{seat.node_id} (host {seat.host})" for seat in unproven[:NAMED])
    more = f" and {len(unproven) - NAMED} more" if len(unproven) > NAMED else ""
    return (
        f"{left}; not proven dead: {names}{more}; that takes an agent started there, else their ranks are surely "
        f"dead {takeover_wait_s(spec):g} s after that was seen; then {begins} (--takeover if you know that "
        "they are dead)"
    )


def restarted_by_scheduler(old: str | None, new: str | None) -> bool:
    """Whether the same scheduler job started again, which it does only when its old processes are gone."""
    if old is None or new is None:
        return False
    old_job, _, old_count = old.rpartition(".")
    new_job, _, new_count = new.rpartition(".")
    counts = old_count.isdigit() and new_count.isdigit()
    return old_job != "" and old_job == new_job and counts and int(new_count) > int(old_count)


def _different_spec(run_id: str, theirs: JobSpec, ours: JobSpec) -> str:
    its, own = _flat(theirs), _flat(ours)
    differing = [name for name, value in its.items() if value != own[name]]
    return (
        f"run id {run_id} belongs to a living job with another specification\n"
        f"  its  {_spelled(its, differing)}\n"
        f"  ours {_spelled(own, differing)}\n\n"
        "hint: give this job its own --rdzv-id, or start all nodes of one job with the same options; "
        f"if its agents were killed, it is free {theirs.lease_ttl_s + takeover_wait_s(theirs):g} s later"
    )


def _flat(spec: JobSpec) -> dict[str, object]:
    """All that is agreed on, by name; the policy's parts beside the others."""
    flat = {field.name: getattr(spec, field.name) for field in fields(JobSpec)}
    policy = {field.name: getattr(spec.policy, field.name) for field in fields(Policy)}
    return {**flat, **policy, "extra": {**spec.extra, **spec.policy.extra}, "policy": None}


def _spelled(flat: Mapping[str, object], names: list[str]) -> str:
    return ", ".join(f"{name}: {_text(flat[name])}" for name in names)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value.value if isinstance(value, Enum) else value)
