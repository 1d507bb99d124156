"""Keepers and the ranks they are parent of: deadline, tree kill, evidence, as the real keeper promises them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rounds.sim.host import Host, Process
from rounds.sim.timeline import Timer

from nvrx_async.job.records import Assignment, EndedBy, FaultKind, PythonError, RankEnd
from nvrx_async.rounds.events import Event, RankEnded, RanksGone

UNKILLABLE_S = 10.0
FOREVER_S = 1e9
SIGKILL = 9
SIGTERM = 15


@dataclass(eq=False, slots=True)
class Rank:
    """One training process. `stuck` outlives SIGKILL and, with it pending, never runs a step again.

    `deaf` does not notice that peers are gone; `slow_s` is how much longer than others it takes to die.
    `ghost` woke with its whole host after its deadline: what no rule can fence, and nothing it does takes effect.
    """

    host: Host
    node_id: str
    incarnation: str
    assignment: Assignment
    local_rank: int
    pid: int
    started_s: float
    on_end: Callable[[Rank], None]
    end: RankEnd | None = None
    killed: FaultKind | None = None
    stuck: bool = False
    ghost: bool = False
    deaf: bool = False
    slow_s: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether this rank may take part in a training now."""
        return self.alive and not self.stuck and not self.ghost and not self.host.frozen

    @property
    def number(self) -> int:
        return self.assignment.seat.first_rank + self.local_rank

    @property
    def alive(self) -> bool:
        return self.end is None

    def finish(
        self,
        kind: FaultKind | None,
        by: EndedBy = EndedBy.ITSELF,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        error: PythonError | None = None,
    ) -> None:
        if self.end is not None:
            return
        ran_s = self.host.timeline.now_s - self.started_s
        self.end = RankEnd(
            rank=self.number,
            local_rank=self.local_rank,
            pid=self.pid,
            kind=kind,
            by=by,
            exit_code=exit_code,
            signal=signal,
            ready=ran_s > 1.0,
            ran_s=ran_s,
            error=error,
        )
        self.on_end(self)

    def kill(self, delay_s: float, why: FaultKind, signal: int = SIGKILL) -> None:
        """Die of a signal after `delay_s`; the first reason is the one that is told."""
        if not self.alive:
            return
        self.killed = self.killed or why
        if self.stuck:
            return
        why = self.killed

        def die() -> None:
            self.finish(why, EndedBy.US, signal=signal)

        self.host.timeline.after(delay_s + self.slow_s, lambda: self.host.run(die))


@dataclass(eq=False, slots=True)
class Group:
    """The ranks of one round under one keeper."""

    assignment: Assignment
    ranks: list[Rank] = field(default_factory=list)
    told: bool = False
    promised_s: float = float("-inf")

    @property
    def alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.alive]

    def ends(self) -> tuple[RankEnd, ...]:
        return tuple(rank.end for rank in self.ranks if rank.end is not None)


class Keeper(Process):
    """Starts, fences and kills ranks. `past_deadline_s` makes it break its own rule.

    `tell` brings an event to its agent, `began` tells the model of a rank.
    """

    def __init__(
        self,
        host: Host,
        node_id: str,
        generation: int,
        tell: Callable[[Event], None],
        began: Callable[[Rank], None],
        kill_delay_s: Callable[[], float],
        grace_s: float,
    ) -> None:
        super().__init__(host)
        self.node_id = node_id
        self.generation = generation
        self.good_until_s = float("-inf")
        self.past_deadline_s = 0.0
        self.extends_all = False
        self.groups: dict[int, Group] = {}
        self._tell = tell
        self._began = began
        self._kill_delay_s = kill_delay_s
        self._grace_s = grace_s
        self._deadline: Timer | None = None
        self._orphaned = False

    @property
    def ranks(self) -> list[Rank]:
        return [rank for group in self.groups.values() for rank in group.alive]

    def renew(self, good_until_s: float) -> None:
        """Ranks may start and run until then (this host's clock)."""
        self.good_until_s = max(good_until_s, self.good_until_s)
        self._set_timer()

    def extend(self, number: int, until_s: float) -> None:
        """The ranks of this round may run until then, by the promise of all; others may not start by it."""
        group = self.groups.get(number)
        if self.extends_all:
            self.good_until_s = max(until_s, self.good_until_s)
        elif group is not None:
            group.promised_s = max(until_s, group.promised_s)
        self._set_timer()

    def until_s(self, group: Group) -> float:
        """T of these ranks."""
        return max(self.good_until_s, group.promised_s) + self.past_deadline_s

    def _set_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        due_s = [self.until_s(group) for group in self.groups.values() if group.alive]
        self._deadline = self.at_clock(min(due_s, default=FOREVER_S), self._fence) if due_s else None

    def start(self, assignment: Assignment, generation: int) -> None:
        """Start the ranks, unless the order is for another keeper or comes at or after the deadline."""
        if self.groups.get(assignment.round) is not None:
            return
        group = self.groups[assignment.round] = Group(assignment)
        late = self.host.clock_s() >= self.good_until_s + self.past_deadline_s
        if generation != self.generation or late:
            kind = FaultKind.FENCED if late else FaultKind.START_FAILED
            group.told = True
            self._tell(RanksGone(assignment.round, unstarted(assignment, kind)))
            return
        for local_rank in range(assignment.seat.slots):
            rank = Rank(
                host=self.host,
                node_id=self.node_id,
                incarnation=assignment.seat.incarnation,
                assignment=assignment,
                local_rank=local_rank,
                pid=self.host.pid(),
                started_s=self.host.timeline.now_s,
                on_end=lambda rank: self.run(lambda: self._ended(group, rank)),
            )
            group.ranks.append(rank)
            self._began(rank)
        self._set_timer()

    def stop(self, number: int, *, grace: bool) -> None:
        group = self.groups.get(number)
        if group is None or not group.alive:
            self._tell(RanksGone(number, group.ends() if group else ()))
            return
        self._kill(group, FaultKind.STOPPED_BY_US, grace=grace)

    def agent_gone(self) -> None:
        """End of file on the agent's pipe: kill the tree; the keeper exits when nothing of it lives."""
        self._orphaned = True
        for group in self.groups.values():
            self._kill(group, FaultKind.STOPPED_BY_US, grace=False)
        self._exit_if_done()

    def crash(self) -> None:
        """Die without a word: the ranks get their parent-death signal."""
        self.die()
        for rank in self.ranks:
            rank.kill(self._kill_delay_s(), FaultKind.KEEPER_LOST)

    def _fence(self) -> None:
        for group in self.groups.values():
            if self.until_s(group) <= self.host.clock_s() + 1e-6:
                self._kill(group, FaultKind.FENCED, grace=False)

    def _kill(self, group: Group, why: FaultKind, *, grace: bool) -> None:
        for rank in group.alive:
            if grace and not rank.deaf and self.host.timeline.random.random() < 0.5:
                rank.kill(self._kill_delay_s(), why, SIGTERM)
            else:
                rank.kill((self._grace_s if grace else 0.0) + self._kill_delay_s(), why)
        if any(rank.stuck for rank in group.alive):
            self.after(UNKILLABLE_S, lambda: self._give_up(group))

    def _give_up(self, group: Group) -> None:
        if group.told or not group.alive:
            return
        group.told = True
        stuck = tuple(rank.local_rank for rank in group.alive)
        self._tell(RanksGone(group.assignment.round, group.ends(), stuck))
        self._orphaned_exit(group)

    def _ended(self, group: Group, rank: Rank) -> None:
        assert rank.end is not None
        if not self._orphaned:
            self._tell(RankEnded(group.assignment.round, rank.end))
            if not group.alive and not group.told:
                group.told = True
                self._tell(RanksGone(group.assignment.round, group.ends()))
        self._exit_if_done()

    def _orphaned_exit(self, group: Group) -> None:
        if self._orphaned and all(rank.stuck for rank in group.alive):
            self.die()

    def _exit_if_done(self) -> None:
        if self._orphaned and not self.ranks:
            self.die()


def unstarted(assignment: Assignment, kind: FaultKind) -> tuple[RankEnd, ...]:
    """Evidence of ranks that never were."""
    return tuple(
        RankEnd(rank=assignment.seat.first_rank + local, local_rank=local, pid=0, kind=kind, by=EndedBy.US)
        for local in range(assignment.seat.slots)
    )
