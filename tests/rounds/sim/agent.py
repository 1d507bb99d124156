"""The modelled interpreter: one process of an agent, its lives, its session, and its two machines."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rounds.sim.host import Host, Process
from rounds.sim.keeper import Group, Keeper, Rank, unstarted
from rounds.sim.network import Link, Watch
from rounds.sim.store import Change
from rounds.sim.timeline import Timer

from nvrx_async.etcd.types import Listing, Put, Scope, Txn, TxnResult
from nvrx_async.job.records import FaultKind
from nvrx_async.rounds.effects import (
    AskPeers,
    Campaign,
    Commit,
    Effect,
    Extend,
    Finish,
    HoldRanks,
    Machine,
    Notify,
    ProveDead,
    Rely,
    ReservePort,
    Revoke,
    StartRanks,
    StopAtStep,
    StopRanks,
)
from nvrx_async.rounds.events import (
    Answered,
    Changed,
    Committed,
    Deposed,
    Elected,
    Event,
    KeeperLost,
    KeeperReady,
    LeaseGranted,
    LeaseLost,
    Listed,
    Now,
    PortReserved,
    RanksGone,
    RanksHeld,
    Refused,
    Renewed,
    Tick,
)
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.promises import Answer, Book, Contact, Peer, Question
from nvrx_async.rounds.tolerance import Tolerance

if TYPE_CHECKING:
    from rounds.sim.world import World

MARGIN_S = 0.3
KEEPER_STARTS_S = 0.05
ANSWER_WITHIN_S = 0.8
REQUEUE = 75
RETURN_LIMIT_S = 25.0
"""How long beyond the outage limit an agent without a lease waits for the store, ranks stopped."""
BUSY_TURNS = 400
"""So many turns within one second mean that a machine asks for itself without end."""


class Agent(Process):
    """One process `nvrx-launch`. `slot` numbers agents of the model; a restarted one keeps slot and node id."""

    def __init__(self, world: World, host: Host, slot: int, node_id: str, launch_id: str | None) -> None:
        super().__init__(host)
        self.world = world
        self.slot = slot
        self.node_id = node_id
        self.launch_id = launch_id
        self.exit_code: int | None = None
        self.attempt: int | None = None
        self.life: Life | None = None
        self.keeper: Keeper | None = None
        self.generation = 0
        self.lives = 0
        self.book = Book()
        self._swept: list[Keeper] = []
        self._spawn_keeper()
        self.begin_life()

    @property
    def ranks(self) -> list[Rank]:
        """Live processes that this agent's keepers started."""
        keepers = [*self._swept, *([self.keeper] if self.keeper else [])]
        return [rank for keeper in keepers for rank in keeper.ranks]

    @property
    def incarnation(self) -> str:
        """Of the life that goes on, empty between two."""
        return self.life.incarnation if self.life is not None else ""

    def life_is(self, incarnation: str) -> bool:
        """Whether this incarnation lives here."""
        return self.incarnation == incarnation

    def begin_life(self) -> None:
        self.lives += 1
        self.life = Life(self)

    def crash(self) -> None:
        """Die between two instructions; the keeper sees end of file a moment later."""
        if not self.alive:
            return
        self.world.tell(self, "CRASHES")
        self._end()

    def exit(self, exit_code: int, reason: str) -> None:
        self.world.tell(self, f"exits {exit_code}: {reason}")
        self.exit_code = exit_code
        self._end()
        self.world.checks.exited(self, reason)

    def crash_keeper(self) -> None:
        keeper = self.keeper
        if keeper is None or not keeper.alive or not self.alive:
            return
        self.world.tell(self, "KEEPER CRASHES")
        keeper.crash()
        self.after(0.001, lambda: self._keeper_lost(keeper))

    def tell_life(self, event: Event) -> None:
        """An event of the keeper reaches this agent; those of rounds of an earlier life are dropped."""
        life = self.life
        self.after(0.001, lambda: life.enqueue(event) if life is not None and life is self.life else None)

    def _end(self) -> None:
        self.die()
        life, self.life = self.life, None
        if life is not None:
            life.close()
        keeper = self.keeper
        if keeper is not None:
            keeper.after(0.003, keeper.agent_gone)

    def _spawn_keeper(self) -> None:
        self.generation += 1
        self.keeper = Keeper(
            host=self.host,
            node_id=self.node_id,
            generation=self.generation,
            tell=self.tell_life,
            began=self.world.rank_began,
            kill_delay_s=self.world.kill_delay_s,
            grace_s=self.world.setup.grace_s,
        )
        self.keeper.past_deadline_s = self.world.setup.past_deadline_s
        generation = self.generation
        self.after(KEEPER_STARTS_S, lambda: self._keeper_ready(generation))

    def _keeper_ready(self, generation: int) -> None:
        if self.life is not None and self.keeper is not None and self.keeper.alive:
            self.life.enqueue(KeeperReady(generation))

    def _keeper_lost(self, keeper: Keeper) -> None:
        if self.life is not None:
            self.life.keeper_lost(keeper)
        self._swept.append(keeper)
        good_until_s = keeper.good_until_s
        self._spawn_keeper()
        assert self.keeper is not None
        self.keeper.renew(good_until_s)
        for group in keeper.groups.values():
            if not group.told:
                self._sweep(keeper, group)

    def _sweep(self, keeper: Keeper, group: Group) -> None:
        """The agent finds what the keeper left, and tells when nothing of it lives."""
        if group.alive and not all(rank.stuck for rank in group.alive):
            self.after(0.05, lambda: self._sweep(keeper, group))
            return
        stuck = tuple(rank.local_rank for rank in group.alive)
        group.told = True
        if stuck:
            self.after(10.0, lambda: self.tell_life(RanksGone(group.assignment.round, group.ends(), stuck)))
        else:
            self.tell_life(RanksGone(group.assignment.round, group.ends()))


@dataclass(slots=True)
class _Work:
    """A Commit under way."""

    machine: Machine
    commit: Commit
    done: list[tuple[Txn, int]] = field(default_factory=list)


class Life:
    """One lease, one incarnation, one member, one coordinator."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.world = agent.world
        self.link = Link(agent.world.store, agent)
        self.incarnation = f"{agent.node_id}.{agent.slot}.{agent.pid}.{agent.lives}"
        self.lease = 0
        self.mirror = Mirror()
        self.machines: tuple[Machine, ...] = ()
        self.over = False
        self.why = ""
        self._says: dict[int, str] = {}
        self._committing: set[int] = set()
        self._started: dict[int, StartRanks] = {}
        self._inbox: list[tuple[Machine | None, Event]] = []
        self._due = False
        self._wake: dict[int, float | None] = {}
        self._timer: Timer | None = None
        self._watches: dict[Scope, Watch | None] = {}
        self._turns: list[float] = []
        self._sent_s = 0.0
        self._acknowledged_s = 0.0
        self._relied = 0
        self._in_flight = False
        self._next_renewal: Timer | None = None
        self._failing_since_s: float | None = None
        self._gap_ended_s: float | None = None
        self._lost = False
        self._limit_s = self.clock_s() + self.world.setup.spec.outage_limit_s + RETURN_LIMIT_S
        self._grant()

    def clock_s(self) -> float:
        return self.agent.host.clock_s()

    def now(self) -> Now:
        return Now(self.clock_s(), f"+{self.world.timeline.now_s:.3f}")

    def states(self) -> str:
        """What each machine says of its own state: for the story."""
        return " | ".join(self._says[index] for index in sorted(self._says))

    def close(self) -> None:
        self.over = True
        if not self.link.closed:
            self.link.close()
        if self._timer is not None:
            self._timer.cancel()

    # --- session -------------------------------------------------------------------------------------

    def _grant(self) -> None:
        sent_s = self.clock_s()

        def granted(lease: int | None) -> None:
            if self.over:
                return
            if lease is None and not self.machines and sent_s >= self._limit_s:
                self.agent.exit(REQUEUE, "the store did not answer")
                return
            if lease is None:
                self.agent.after(0.5, lambda: None if self.over else self._grant())
                return
            self.lease, self._lost = lease, False
            if self.machines:
                self.world.tell(self.agent, f"has a new lease {lease:x}")
                self.enqueue(LeaseGranted(lease))
                self._renewed(sent_s)
                self._schedule_renewal()
            else:
                self._begin(sent_s)

        self.link.request(lambda: self.world.store.grant(self.world.setup.spec.lease_ttl_s), granted)

    def _begin(self, sent_s: float) -> None:
        self.world.tell(self.agent, f"begins life {self.incarnation} on lease {self.lease:x}")
        self.machines = self.world.setup.machines(self)
        self._open_scopes()
        self._renewed(sent_s)
        keeper = self.agent.keeper
        if keeper is not None and keeper.alive and self.agent.lives > 1:
            self.enqueue(KeeperReady(keeper.generation))
        self._schedule_renewal()
        self._request_turn()

    def _schedule_renewal(self) -> None:
        third_s = self.world.setup.spec.lease_ttl_s / 3 * self.world.timeline.random.uniform(0.8, 1.0)
        self._next_renewal = self.agent.after(third_s, self._renew)

    def renew_now(self) -> None:
        """Somebody asks whether etcd answers."""
        if self._in_flight or self._lost or not self.machines:
            return
        if self._next_renewal is not None:
            self._next_renewal.cancel()
        self._renew()

    @property
    def contact(self) -> Contact:
        """What this agent knows of its own way to the store."""
        return Contact(self._failing_since_s, self._gap_ended_s)

    def _renew(self) -> None:
        """One renewal in flight; an answer that comes after the time-out is never credited."""
        if self.over or self._lost or self._in_flight:
            return
        lapsed = self.clock_s() >= self._acknowledged_s + self.world.setup.spec.lease_ttl_s
        if lapsed and self._relied != self.lease:
            self._lose("no renewal was acknowledged for its TTL")
            return
        sent_s = self.clock_s()
        self._in_flight = True
        self._failing_since_s = sent_s if self._failing_since_s is None else self._failing_since_s

        def answered(alive: bool | None) -> None:  # noqa: FBT001 - a callback
            if self.over:
                return
            self._in_flight = False
            if lease != self.lease:
                return
            if alive is False:
                self._lose("the store says so")
                return
            if alive:
                self._renewed(sent_s)
                self._schedule_renewal()
            else:
                self._next_renewal = self.agent.after(0.15, self._renew)

        def late(alive: bool) -> None:  # noqa: FBT001 - a callback
            if alive and self.world.setup.credits_late_answers and not self.over:
                self._renewed(self._sent_s)

        self._sent_s = sent_s
        lease, timeout_s = self.lease, self.world.setup.spec.lease_ttl_s / 4
        self.link.request(lambda: self.world.store.renew(lease), answered, timeout_s=timeout_s, late=late)

    def _lose(self, because: str) -> None:
        """The session is over for good; its lease is left to itself, since it may be gone or not."""
        self.world.tell(self.agent, f"lease lost: {because}")
        self._lost = True
        self.enqueue(LeaseLost())
        self._grant()

    def _renewed(self, sent_s: float) -> None:
        spec = self.world.setup.spec
        if self._acknowledged_s and sent_s - self._acknowledged_s > spec.lease_ttl_s / 2:
            self._gap_ended_s = sent_s
        self._acknowledged_s, self._failing_since_s = sent_s, None
        if self._relied == self.lease or not self.world.setup.relies_on_the_registered_lease:
            self._move_t(sent_s)

    def _move_t(self, sent_s: float) -> None:
        """T follows the lease that holds the registration, and no other."""
        spec = self.world.setup.spec
        good_until_s = sent_s + spec.lease_ttl_s - (spec.kill_time_s + MARGIN_S)
        if self.agent.keeper is not None:
            self.agent.keeper.run(lambda: self._tell_keeper(good_until_s))
        self.enqueue(Renewed(sent_s, good_until_s))

    def _tell_keeper(self, good_until_s: float) -> None:
        if not self.over and self.agent.keeper is not None:
            self.agent.keeper.renew(good_until_s)

    # --- turns ---------------------------------------------------------------------------------------

    def enqueue(self, event: Event, machine: Machine | None = None) -> None:
        if self.over:
            return
        self._inbox.append((machine, event))
        self._request_turn()

    def _request_turn(self) -> None:
        if self._due or not self.machines:
            return
        self._due = True
        chance = self.world.timeline.random
        delay_s = chance.uniform(0.02, 0.1) if chance.random() < 0.02 else chance.uniform(0.0, 0.002)
        self.agent.after(delay_s, self._begin_turn)

    def _begin_turn(self) -> None:
        if not self.over:
            self._count_turn()
            self._go_on(self._turn())

    def _count_turn(self) -> None:
        now_s = self.world.timeline.now_s
        self._turns = [at_s for at_s in self._turns if at_s > now_s - 1.0]
        self._turns.append(now_s)
        if len(self._turns) > BUSY_TURNS:
            self.world.checks.fail(f"{self.incarnation} is busy without end: {self.why}")

    def _turn(self) -> Generator[Effect, None, None]:
        """Observe all that came, then let each machine decide; yields before each effect."""
        self._due = False
        inbox, self._inbox = self._inbox, []
        for target, event in inbox:
            self.mirror.observe(event)
            for machine in self.machines:
                if target is None or target is machine:
                    machine.observe(event, self.now())
            self._open_scopes()
        for index, machine in enumerate(self.machines):
            decision = machine.decide(self.now())
            self._wake[index] = decision.wake_at_s
            self.why = self._says[index] = decision.reason
            for effect in decision.effects:
                yield effect
                if self.over:
                    return
                self._execute(machine, effect)
                if self.over:
                    return
        self._open_scopes()
        self._set_timer()
        if self._inbox:
            self._request_turn()

    def _go_on(self, turn: Generator[Effect, None, None]) -> None:
        for effect in turn:
            if isinstance(effect, Notify):
                continue
            point = self.world.before_effect(self.agent, effect)
            if point == "crash":
                self.agent.crash()
                return
            if point == "freeze":
                self.agent.freeze_before(lambda: self._go_on(turn))
                return

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wakes = [at_s for at_s in self._wake.values() if at_s is not None]
        if wakes:
            self._timer = self.agent.at_clock(min(wakes) + 1e-6, lambda: self.enqueue(Tick()))

    # --- scopes --------------------------------------------------------------------------------------

    def _open_scopes(self) -> None:
        """Know what the machines need to know now, and nothing else: a scope that is new is listed."""
        scopes = frozenset[Scope]().union(*(machine.scopes() for machine in self.machines))
        self.mirror.open(scopes)
        for scope in [scope for scope in self._watches if scope not in scopes]:
            watch = self._watches.pop(scope)
            if watch is not None:
                self.link.watches.pop(watch, None)
        for scope in sorted(scopes - self._watches.keys()):
            self._watches[scope] = None
            self._list(scope)

    def _list(self, scope: Scope, then: Callable[[], None] = lambda: None) -> None:
        def listed(listing: Listing) -> None:
            if self.over:
                return
            if scope in self._watches:
                if self._watches[scope] is None and not scope.first:  # that is read once, and not followed
                    self._watches[scope] = self.link.watch(scope, listing, self._changed)
                self.enqueue(Listed(listing))
            then()

        self.link.read(scope, listed)

    def cut_watches(self) -> None:
        """All watches are lost: scopes are listed anew, what changed meanwhile is only seen as the new state."""
        for scope, watch in list(self._watches.items()):
            if watch is not None:
                self.link.watches.pop(watch, None)
                self._watches[scope] = None
                self._list(scope)

    def replay(self, count: int) -> None:
        """Old events of the open scopes come again."""
        log = self.world.store.log
        for change in self.world.timeline.random.sample(log, min(count, len(log))):
            if any(scope.covers(change.key) for scope in self._watches):
                self.enqueue(Changed(change))

    def _changed(self, change: Change) -> None:
        self.enqueue(Changed(change))

    # --- effects -------------------------------------------------------------------------------------

    def _execute(self, machine: Machine, effect: Effect) -> None:
        self.world.tell(
            self.agent, f"{_short(effect)}   [{self.why}]" if not isinstance(effect, Notify) else ""
        )
        match effect:
            case Commit():
                self._commit(_Work(machine, effect))
            case ReservePort(round=number):
                port = self.agent.host.next_port = self.agent.host.next_port + 1
                self.agent.after(0.001, lambda: self.enqueue(PortReserved(number, port)))
            case StartRanks():
                self._start(effect)
            case StopRanks(round=number, grace=grace):
                self._to_keeper(number, lambda keeper: keeper.stop(number, grace=grace))
            case Campaign():
                self._campaign(effect)
            case Rely() | Extend():
                self._move(effect)
            case AskPeers():
                self._ask(effect)
            case ProveDead(node=node):
                self.world.prove_dead(self, node, self.enqueue)
            case Revoke(lease=lease):
                self.link.request(lambda: self.world.store.revoke(lease), lambda _: None)
            case HoldRanks(round=number):
                step = self.world.step()
                self.agent.after(0.02, lambda: self.enqueue(RanksHeld(number, step)))
            case StopAtStep(round=number, step=step) if step is not None:
                self.world.stop_at_step(self.agent, number)
            case Finish():
                self._finish(effect)
            case Notify(notice=notice):
                self.world.noticed(self.agent, notice)

    def _start(self, effect: StartRanks) -> None:
        keeper = self.agent.keeper
        assert keeper is not None
        self.world.checks.may_start(self, effect.assignment)
        self._started[effect.assignment.round] = effect
        if not keeper.alive:
            ends = unstarted(effect.assignment, FaultKind.START_FAILED)
            self.agent.after(0.002, lambda: self.enqueue(RanksGone(effect.assignment.round, ends)))
            return
        keeper.after(0.001, lambda: keeper.start(effect.assignment, effect.generation))

    def _move(self, by: Rely | Extend) -> None:
        """Move T: by another lease from now on, or by promises for one round."""
        keeper = self.agent.keeper
        if isinstance(by, Extend):
            if keeper is not None and keeper.alive:
                keeper.after(0.001, lambda: keeper.extend(by.round, by.until_s))
            return
        self._relied = by.lease
        if by.lease == self.lease and not self._lost:
            self._move_t(self._acknowledged_s)

    def _ask(self, asking: AskPeers) -> None:
        """Ask all peers at once, and try a renewal; who is silent for a moment objects."""
        self.renew_now()
        silent = {peer.node_id for peer in asking.peers}
        told: list[str] = []

        def tell(objection: str) -> None:
            if not told:
                told.append(objection)
                self.enqueue(Answered(asking.sent_at_s, objection))

        def answered(peer: Peer, answer: Answer) -> None:
            silent.discard(peer.node_id)
            if not answer.yes:
                tell(f"{peer.node_id} {answer.reason}")
            elif not silent:
                tell("")

        if not silent:
            tell("")
        for peer in asking.peers:
            self.world.ask_peer(
                self.agent, peer, asking.question, lambda said, peer=peer: answered(peer, said)
            )  # type: ignore[misc]
        self.agent.after(ANSWER_WITHIN_S, lambda: tell(f"{sorted(silent)} silent"))

    def asked(self, question: Question, incarnation: str) -> Answer:
        """Another agent asks for a promise."""
        self.renew_now()
        for machine in self.machines:
            if isinstance(machine, Tolerance):
                return machine.answer(question, incarnation, self.clock_s(), self.contact)
        return Answer(yes=False, reason="has no life")

    def keeper_lost(self, keeper: Keeper) -> None:
        """A start that the dead keeper never read ends too."""
        self.enqueue(KeeperLost(keeper.generation))
        for number, start in self._started.items():
            if start.generation == keeper.generation and number not in keeper.groups:
                gone = RanksGone(number, unstarted(start.assignment, FaultKind.KEEPER_LOST))
                self.agent.tell_life(gone)

    def _to_keeper(self, number: int, order: Callable[[Keeper], None]) -> None:
        keeper = self.agent.keeper
        if keeper is None:
            self.enqueue(RanksGone(number, ()))
        elif keeper.alive and (number in keeper.groups or not self.agent.ranks):
            keeper.after(0.001, lambda: order(keeper))

    def _commit(self, work: _Work) -> None:
        if id(work.machine) in self._committing:
            self.world.checks.fail(f"{self.incarnation} asked for {work.commit.tag} with a commit under way")
        self._committing.add(id(work.machine))
        self._next_txn(work, list(work.commit.txns))

    def _next_txn(self, work: _Work, left: list[Txn]) -> None:
        if not left:
            self._answer(work, Committed(work.commit.tag, tuple(work.done)))
            return
        txn = left.pop(0)

        def answered(result: TxnResult | None) -> None:
            if self.over:
                return
            if result is not None and result.succeeded:
                work.done.append((txn, result.revision))
                self._next_txn(work, left)
                return
            self.world.tell(self.agent, f"{work.commit.tag} {'unknown' if result is None else 'refused'}")
            self._list_all(lambda: self._answer(work, Refused(work.commit.tag)))

        self.link.commit(txn, answered)

    def _answer(self, work: _Work, event: Event) -> None:
        self._committing.discard(id(work.machine))
        self.enqueue(event, work.machine)

    def _list_all(self, then: Callable[[], None]) -> None:
        waiting = set(self._watches)
        if not waiting:
            then()
        for scope in sorted(waiting):

            def listed(scope: Scope = scope) -> None:
                waiting.discard(scope)
                if not waiting:
                    then()

            self._list(scope, listed)

    def _campaign(self, effect: Campaign) -> None:
        scope = Scope(effect.key.rpartition("/")[0] + "/", prefix=True)
        candidates: dict[str, int] = {}
        told = ""

        def judge() -> None:
            nonlocal told
            mine = candidates.get(effect.key)
            if mine != effect.create_revision:
                if told != "deposed":
                    told = "deposed"
                    self.enqueue(Deposed(effect.key))
            elif told == "" and min(candidates.values()) == mine:
                told = "elected"
                self.enqueue(Elected(effect.key, effect.create_revision))

        def changed(change: Change) -> None:
            if self.over:
                return
            if hasattr(change, "create_revision"):
                candidates[change.key] = change.create_revision
            else:
                candidates.pop(change.key, None)
            judge()

        def listed(listing: Listing) -> None:
            if self.over:
                return
            candidates.update({item.key: item.create_revision for item in listing.items})
            self.link.watch(scope, listing, changed)
            judge()

        self.link.read(scope, listed)

    def _finish(self, effect: Finish) -> None:
        lease = self.lease
        self.world.checks.finishing(self, effect)
        if not self._lost:
            self.link.request(lambda: self.world.store.revoke(lease), lambda _: None)
        self.close()
        if not effect.again:
            self.agent.exit(effect.exit_code, effect.reason)
            return
        self.world.tell(self.agent, f"begins anew: {effect.reason}")
        self.agent.life = None
        self.agent.after(0.05, self._again)

    def _again(self) -> None:
        """A new life begins when nothing of the old one runs."""
        if self.agent.ranks and not all(rank.stuck for rank in self.agent.ranks):
            self.agent.after(0.05, self._again)
        else:
            if self.agent.keeper is not None:
                self.agent.keeper.groups.clear()
            self.agent.begin_life()


def _short(effect: Effect) -> str:
    match effect:
        case Commit(tag=tag, txns=txns):
            operations = [operation for txn in txns for operation in txn.then]
            keys = [one.key if isinstance(one, Put) else f"-{one.scope.key}" for one in operations]
            return f"Commit {tag}: {', '.join(key.split('/', 4)[-1] for key in keys)}"
        case StartRanks(assignment=assignment):
            return f"StartRanks round {assignment.round} group rank {assignment.seat.group_rank}"
        case ProveDead(node=node):
            return f"ProveDead {node.incarnation}"
        case Notify():
            return ""
    return repr(effect)
