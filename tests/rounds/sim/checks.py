"""What must never happen, looked for at every commit, every start and every end; and what must happen at last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rounds.sim.keeper import Rank
from rounds.sim.store import Change

from nvrx_async.etcd.types import Deleted, KeyValue, Scope
from nvrx_async.job.codec import decode
from nvrx_async.job.keys import AttemptKeys, current, job_scope
from nvrx_async.job.records import (
    Assignment,
    Current,
    End,
    EndedBy,
    Fault,
    FaultKind,
    Job,
    Node,
    Outcome,
    Phase,
    Round,
    Seat,
    Spare,
    WorldShard,
)
from nvrx_async.rounds.effects import Finish
from nvrx_async.rounds.seating import in_round
from nvrx_async.rounds.world import seal_of

if TYPE_CHECKING:
    from rounds.sim.agent import Agent, Life
    from rounds.sim.world import World

RUN_ID = "job"
STRENGTH = {kind: place for place, kind in enumerate(FaultKind)}
USAGE = 2
OWN = frozenset(list(FaultKind)[: STRENGTH[FaultKind.START_FAILED] + 1])
"""Faults that stand for themselves; of the weaker ones find_root may take another than the first."""
SEEN_BY_ALL_S = 3.0
"""A report this much older than the verdict cannot have been missed by whoever wrote it."""


class Violation(AssertionError):  # noqa: N818 - what a check found, not an error of the model
    """The machines broke a rule; the message ends with what happened before."""


@dataclass(slots=True)
class SealedRound:
    """A round that existed, as it was when it began to run."""

    attempt: int
    number: int
    token: str
    keys: dict[str, KeyValue]
    seats: tuple[Seat, ...]
    spares: tuple[Spare, ...]
    ended_s: float | None = None
    absent: frozenset[str] = frozenset()
    reports: dict[str, tuple[float, Fault]] = field(default_factory=dict)

    @property
    def recorded(self) -> list[Seat | Spare]:
        """Members and spares."""
        return [*self.seats, *self.spares]


class Checks:
    """Violations are raised where they happen, so that the story ends there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ranks: list[Rank] = []
        self.attempt_of: dict[int, int] = {}
        self.sealed: dict[tuple[int, int], SealedRound] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.ends: dict[tuple[int, int], End] = {}
        self.rounds: dict[int, Round] = {}
        self.incarnations: dict[str, int] = {}
        self.exits: list[tuple[Agent, str]] = []

    def fail(self, what: str) -> None:
        story = "\n".join(self._world.story[-150:])
        raise Violation(f"{what}\nat {self._world.timeline.now_s:.3f} s\n{story}\nVIOLATION {what}")

    # --- the store -----------------------------------------------------------------------------------

    def committed(self, changes: tuple[Change, ...]) -> None:
        """The store took a step."""
        base = job_scope(RUN_ID).key
        for change in changes:
            parts = change.key.removeprefix(base).split("/")
            if parts == ["current"]:
                self._current(change)
            elif len(parts) > 1 and parts[0].isdigit():
                self._attempt_key(int(parts[0]), parts[1:], change)

    def _current(self, change: Change) -> None:
        if isinstance(change, Deleted):
            self.fail("`current` was deleted")
            return
        attempt = decode(Current, change.key, change.value).attempt
        if change.version != attempt + 1:
            self.fail(f"`current` moved to attempt {attempt} at its version {change.version}")
        if attempt and any(rank.counts for rank in self.ranks):
            alive = self._names(rank for rank in self.ranks if rank.counts)
            old = AttemptKeys(RUN_ID, attempt - 1)
            if old.outcome not in self._world.store.keys:
                self.fail(f"attempt {attempt} began while ranks of the one before live: {alive}")

    def _attempt_key(self, attempt: int, parts: list[str], change: Change) -> None:
        kind = parts[0]
        if isinstance(change, KeyValue) and kind != "election" and attempt < self.current_attempt():
            self.fail(f"{change.key} was written after attempt {self.current_attempt()} had begun")
        if kind == "rounds" and len(parts) > 2:
            self._round_key(attempt, int(parts[1]), parts[2:], change)
        elif kind == "interrupt":
            if isinstance(change, KeyValue) and change.version != 1:  # those of long ago are deleted
                self.fail(f"the interrupt of round {parts[1]} was written twice")
        elif isinstance(change, Deleted):
            if kind in ("job", "outcome", "round"):
                self.fail(f"{change.key} was deleted")
        elif kind == "nodes":
            node = decode(Node, change.key, change.value)
            self.incarnations[node.incarnation] = attempt
            wish = node.node_id if self._world.agents_named(node.node_id) else node.node_id.rpartition("-")[0]
            if wish != node.node_id and len(self._world.agents_named(wish)) < 2:
                self.fail(
                    f"{node.incarnation} gave way to an earlier life of its own: it took the id {node.node_id}"
                )
            for agent in self._world.everyone:
                knew = (agent.host.name, agent.pid) == (
                    node.host,
                    node.process.pid,
                ) and agent.attempt is not None
                if knew and agent.attempt != attempt:
                    self.fail(
                        f"the process of {node.incarnation} was in attempt {agent.attempt}, not {attempt}"
                    )
        elif kind == "outcome":
            self._outcome(attempt, change)
        elif kind == "round":
            self._round(attempt, decode(Round, change.key, change.value), change)

    def _round(self, attempt: int, new: Round, change: KeyValue) -> None:
        if attempt in self.outcomes and attempt in self.rounds and change.version > 1:
            before = self.rounds[attempt]
            if new.phase is not Phase.ENDED and new.number != before.number:
                self.fail(f"round {new.number} of attempt {attempt} opened after its outcome")
        old = self.rounds.get(attempt)
        self.rounds[attempt] = new
        if old is not None and new.number not in (old.number, old.number + 1):
            self.fail(f"round went from {old.number} to {new.number}")
        if old is not None and new.number == old.number + 1 and (attempt, old.number) in self.sealed:
            ended = self.sealed[attempt, old.number]
            ended.ended_s = self._world.timeline.now_s
            registered = b" ".join(
                held.value for key, held in self._world.store.keys.items() if "/nodes/" in key
            ).decode()
            ended.absent = frozenset(
                seat.incarnation for seat in ended.seats if f'"{seat.incarnation}"' not in registered
            )
        if new.phase is Phase.RUNNING:
            self._runs(attempt, new)

    def _runs(self, attempt: int, new: Round) -> None:
        known = self.sealed.get((attempt, new.number))
        if known is not None:
            if known.token != new.token:
                self.fail(f"round {new.number} of attempt {attempt} got a second world ({new.token})")
            return
        if new.token is None:
            self.fail(f"round {new.number} runs without a token")
            return
        keys, seal = AttemptKeys(RUN_ID, attempt), seal_of(new)
        assert seal is not None
        scope = Scope(f"{keys.base}rounds/{seal[0]}/seal/{new.token}/", prefix=True)
        held = {item.key: item for item in self._world.store.read(scope).items}
        shards = [
            decode(WorldShard, key, item.value)
            for key, item in held.items()
            if key.startswith(keys.worlds(*seal).key)
        ]
        seats = tuple(seat for shard in sorted(shards, key=lambda one: one.shard) for seat in shard.seats)
        spares = tuple(spare for shard in shards for spare in shard.spares)
        sealed = SealedRound(attempt, new.number, new.token, held, seats, spares)
        self._well_formed(sealed, new)
        self._sticky(sealed)
        self.sealed[attempt, new.number] = sealed
        self._world.tell(
            None, f"round {new.number} runs: {[f'{s.incarnation}={s.group_rank}' for s in seats]}"
        )

    def _well_formed(self, sealed: SealedRound, new: Round) -> None:
        spec = self._world.setup.spec
        seats = sealed.seats
        if [seat.group_rank for seat in seats] != list(range(len(seats))):
            self.fail(f"group ranks of round {new.number} are {[seat.group_rank for seat in seats]}")
        if not spec.min_nodes <= len(seats) <= spec.max_nodes:
            self.fail(f"round {new.number} has {len(seats)} nodes")
        first = 0
        for seat in seats:
            if seat.first_rank != first:
                self.fail(f"ranks of round {new.number} are not counted through: {seats}")
            first += seat.slots
        if len({seat.node_id for seat in seats}) != len(seats):
            self.fail(f"a node has two seats in round {new.number}: {seats}")
        keys, seal = AttemptKeys(RUN_ID, sealed.attempt), seal_of(new)
        assert seal is not None
        for seat in seats:
            held = sealed.keys.get(keys.assignment(*seal, seat.node_id))
            if held is None:
                self.fail(f"{seat.node_id} has a seat in round {new.number} and no assignment")
                return
            assignment = in_round(decode(Assignment, held.key, held.value), new)
            if assignment.seat != seat or assignment.round != new.number or assignment.world_size != first:
                self.fail(f"assignment {assignment} disagrees with the world")
        if new.world_size != first or new.nodes != len(seats):
            self.fail(f"`round` tells of {new.nodes} nodes and {new.world_size} ranks, the world has {seats}")

    def _sticky(self, sealed: SealedRound) -> None:
        before = [
            one
            for (attempt, number), one in self.sealed.items()
            if attempt == sealed.attempt and number < sealed.number
        ]
        if not before:
            return
        old = {seat.incarnation: seat.group_rank for seat in max(before, key=lambda one: one.number).seats}
        for seat in sealed.seats:
            rank = old.get(seat.incarnation)
            if rank is not None and rank < len(sealed.seats) and rank != seat.group_rank:
                self.fail(f"survivor {seat.node_id} had group rank {rank}, now {seat.group_rank}")

    def _round_key(self, attempt: int, number: int, parts: list[str], change: Change) -> None:
        sealed = self.sealed.get((attempt, number))
        match parts:
            case ["seal", token, *_]:
                if sealed is not None and sealed.token == token:
                    self.fail(f"the sealed world of round {number} changed: {change.key}")
            case ["faults", node_id]:
                self._report(sealed, node_id, change)
            case ["end"]:
                self._end(attempt, number, sealed, change)

    def _report(self, sealed: SealedRound | None, node_id: str, change: Change) -> None:
        if sealed is None or isinstance(change, Deleted):
            return
        report = decode(Fault, change.key, change.value)
        before = sealed.reports.get(node_id)
        if before is not None:
            lost = [end for end in before[1].ends if end not in report.ends]
            if lost:
                self.fail(f"the report of {node_id} lost {lost}")
        alive = [
            rank
            for rank in self.ranks
            if rank.alive
            and not rank.stuck
            and rank.node_id == node_id
            and rank.incarnation == report.incarnation
            and rank.assignment.round == sealed.number
        ]
        if alive:
            self.fail(f"{node_id} reported on round {sealed.number} while {self._names(alive)} live")
        sealed.reports[node_id] = (self._world.timeline.now_s, report)

    def _end(self, attempt: int, number: int, sealed: SealedRound | None, change: Change) -> None:
        if isinstance(change, Deleted) or change.version != 1:
            self.fail(f"the end of round {number} was written twice")
            return
        end = decode(End, change.key, change.value)
        self.ends[attempt, number] = end
        if sealed is None:
            return
        old_enough = self._world.timeline.now_s - SEEN_BY_ALL_S
        own = [
            end_of_rank.kind
            for at_s, report in sealed.reports.values()
            if at_s < old_enough and report.kind is None
            for end_of_rank in report.ends
            if end_of_rank.kind in OWN and end_of_rank.by is not EndedBy.US
        ]
        strongest = min(own, key=STRENGTH.__getitem__, default=None)
        if strongest is not None and STRENGTH[end.root.kind] > STRENGTH[strongest]:
            self.fail(f"round {number} ended by {strongest}, the verdict says {end.root.kind}")

    def _outcome(self, attempt: int, change: KeyValue) -> None:
        if change.version != 1:
            self.fail(f"the outcome of attempt {attempt} was written twice")
        outcome = decode(Outcome, change.key, change.value)
        self.outcomes[attempt] = outcome
        self._world.tell(None, f"outcome of attempt {attempt}: {outcome.exit_code} {outcome.reason}")
        alive = [rank for rank in self.ranks if rank.counts]
        if alive:
            self.fail(f"attempt {attempt} has its outcome while {self._names(alive)} live")
        if outcome.success:
            if AttemptKeys(RUN_ID, attempt).interrupt(outcome.round) in self._world.store.keys:
                self.fail(f"success in round {outcome.round}, which was interrupted")
            self._succeeded(attempt)

    def _succeeded(self, attempt: int) -> None:
        last = max(
            (one for one in self.sealed.values() if one.attempt == attempt), key=lambda one: one.number
        )
        started = [
            rank
            for rank in self.ranks
            if self.attempt_of[id(rank)] == attempt and rank.assignment.round == last.number
        ]
        size = sum(seat.slots for seat in last.seats)
        finished = [rank for rank in started if rank.end is not None and rank.end.exit_code == 0]
        if len({rank.number for rank in finished}) != size:
            self.fail(
                f"success, and only {len(finished)} of {size} ranks of round {last.number} exited with 0"
            )

    # --- ranks ---------------------------------------------------------------------------------------

    def may_start(self, life: Life, assignment: Assignment) -> None:
        """A member wants to start ranks: only those of a sealed world, and only its own."""
        attempt = self.incarnations.get(life.incarnation, 0)
        sealed = self.sealed.get((attempt, assignment.round))
        if sealed is None or assignment.seat not in sealed.seats:
            self.fail(f"{life.incarnation} starts {assignment}, which no sealed world holds")
        if assignment.seat.incarnation != life.incarnation:
            self.fail(f"{life.incarnation} starts the ranks of {assignment.seat.incarnation}")

    def rank_began(self, rank: Rank) -> int:
        """Returns the attempt of the rank."""
        attempt = self.incarnations[rank.incarnation]
        self.attempt_of[id(rank)] = attempt
        self.ranks.append(rank)
        for other in self.ranks:
            if other is rank or not other.counts:
                continue
            mine = (attempt, rank.assignment.round)
            theirs = (self.attempt_of[id(other)], other.assignment.round)
            if mine != theirs:
                self.fail(f"{self._names([rank])} starts while {self._names([other])} lives")
            if other.number == rank.number:
                self.fail(f"{self._names([rank])} lives twice: {rank.incarnation} and {other.incarnation}")
        return attempt

    # --- agents --------------------------------------------------------------------------------------

    def exited(self, agent: Agent, reason: str) -> None:
        self.exits.append((agent, reason))
        own_id = self._world.agents_named(agent.node_id)
        if agent.exit_code == USAGE and len(own_id) == 1 and not self._replaced(agent):
            self.fail(f"{agent.node_id} was refused: {reason}")

    def _replaced(self, agent: Agent) -> bool:
        """Whether the scheduler has started the job again since: what it had left of before is refused."""
        held = self._world.store.keys.get(AttemptKeys(RUN_ID, self.current_attempt()).job)
        job = decode(Job, held.key, held.value) if held else None
        return (agent.launch_id, job.launch_id if job else None) == ("launch.0", "launch.1")

    def finishing(self, life: Life, effect: Finish) -> None:
        """A life ends by its own will: nothing that it started may live."""
        alive = [rank for rank in life.agent.ranks if not rank.stuck]
        if alive:
            self.fail(f"{life.incarnation} ends its life ({effect.reason}) while {self._names(alive)} live")

    # --- at the end ----------------------------------------------------------------------------------

    def at_end(self) -> None:
        """All faults are over and enough time has passed: everybody is out, and nothing is left."""
        world = self._world
        stuck = [agent for agent in world.everyone if agent.alive]
        if stuck:
            waits = "; ".join(
                f"{agent.node_id}: {agent.life.states() if agent.life else 'no life'}" for agent in stuck
            )
            self.fail(f"{[agent.node_id for agent in stuck]} wait for ever: {waits}")
        alive = [rank for rank in self.ranks if rank.alive and not rank.stuck]
        if alive:
            self.fail(f"{self._names(alive)} live after the end")
        leased = [held.key for held in world.store.keys.values() if held.lease]
        if leased:
            self.fail(f"still leased after the end: {leased}")
        self._all_reported()

    def _all_reported(self) -> None:
        """Every fault a rank had by itself is told, unless its agent did not live to tell it."""
        ended = set(self.ends)
        for rank in self.ranks:
            end = rank.end
            if end is None or end.kind in (None, FaultKind.CONNECTION_LOST) or end.by is EndedBy.US:
                continue
            at = (self.attempt_of[id(rank)], rank.assignment.round)
            if at not in ended or rank.incarnation in self.sealed[at].absent:
                continue  # it was given up, and the round judged without it
            report = self.sealed[at].reports.get(rank.node_id)
            told = report is not None and any(one.rank == rank.number for one in report[1].ends)
            survived = any(
                seat.incarnation == rank.incarnation
                for (attempt, number), later in self.sealed.items()
                if attempt == at[0] and number > at[1]
                for seat in later.recorded
            )
            if survived and not told:
                self.fail(f"the fault of {self._names([rank])} was never reported, and its agent lived on")

    def _names(self, ranks: Iterable[Rank]) -> str:
        return ", ".join(
            f"rank {rank.number} of round {rank.assignment.round} on {rank.incarnation}" for rank in ranks
        )

    def current_attempt(self) -> int:
        held = self._world.store.keys.get(current(RUN_ID))
        return decode(Current, held.key, held.value).attempt if held else -1
