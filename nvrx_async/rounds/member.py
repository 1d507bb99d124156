"""The member machine: what this agent does with its own ranks and its own keys.

It enters the job, joins rounds, starts the ranks it was assigned, stops them when the round is over, reports
what became of them, and leaves. What other agents do is the coordinator's to judge.
"""

from __future__ import annotations

from dataclasses import replace

from nvrx_async.etcd.types import Scope, Txn
from nvrx_async.faults import signal_name
from nvrx_async.job.keys import current
from nvrx_async.job.records import (
    Assignment,
    Current,
    FaultKind,
    Interrupt,
    JobSpec,
    Join,
    Mark,
    Outcome,
    Phase,
    Round,
    Stop,
)
from nvrx_async.rounds import telling
from nvrx_async.rounds.closing import last_outcome
from nvrx_async.rounds.effects import (
    Commit,
    Decision,
    Effect,
    Finish,
    Finished,
    KillHung,
    Notice,
    Notify,
    ProveDead,
    RankFailed,
    Registered,
    ReservePort,
    Revoke,
    StartRanks,
    StopRanks,
    Waiting,
)
from nvrx_async.rounds.entry import (
    Adopt,
    Entrance,
    Entry,
    Evict,
    Inside,
    Open,
    Pause,
    Prove,
    Refuse,
    Register,
    Strike,
    Superseded,
)
from nvrx_async.rounds.events import (
    Committed,
    Event,
    GrowthAllowed,
    KeeperLost,
    KeeperReady,
    LeaseGranted,
    LeaseLost,
    LeaveRequested,
    Now,
    PortReserved,
    Proven,
    RankEnded,
    RankHung,
    RanksGone,
    RanksHeld,
    Refused,
    Renewed,
    StopWanted,
)
from nvrx_async.rounds.following import Following
from nvrx_async.rounds.holding import RETURN_LIMIT_S, Holding
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.own import InFlight, OwnFault, OwnRanks
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.registration import Registration
from nvrx_async.rounds.seating import in_round
from nvrx_async.rounds.stopping import Stopping, wish_of
from nvrx_async.rounds.world import seal_of

USAGE = 2
REQUEUE = 75
SIGNAL_BASE = 128
LEAVE_LIMIT_S = 5.0
"""How long a leaving agent tries to say so to etcd once its ranks are gone."""


class Member:
    """See the module. One object lives for one life of the agent: one incarnation."""

    def __init__(self, me: Identity, spec: JobSpec, mirror: Mirror, book: Book | None = None) -> None:
        self._me = me
        self._book = book or Book()
        self._spec = spec
        self._mirror = mirror
        self._entrance = Entrance(me, spec)
        self._following = Following(mirror, spec)
        self._entering: Open | Register | None = None
        self._registration: Registration | None = None
        self._ranks: OwnRanks | None = None
        self._reported = -1
        self._joined = -1
        self._done_round = -1
        self._unfit = False
        self._ports: dict[int, int] = {}
        self._asked_port = -1
        self._keeper: int | None = None
        self._holding = Holding(me.lease, spec, mirror)
        self._stands = True
        self._leave: LeaveRequested | None = None
        self._stopping = Stopping()
        self._stop_wanted: StopWanted | None = None
        self._left = False
        self._asked_last = False
        self._others_stay = False
        self._leave_by_s: float | None = None
        self._in_flight: InFlight | None = None
        self._asked_proof: set[str] = set()
        self._revoked: set[int] = set()
        self._told: set[object] = set()
        self._finished = False
        self._effects: list[Effect] = []
        self._wake_at_s: float | None = None

    # What must be known -------------------------------------------------------------------------------

    def scopes(self) -> frozenset[Scope]:
        """The handful of single keys that an agent follows."""
        registered = self._registration
        if registered is None:
            return self._entrance.scopes(self._mirror)
        return self._following.scopes(registered)

    @property
    def registered(self) -> Registration | None:
        """As what this agent is in the attempt; kept when its lease is lost."""
        return self._registration

    @property
    def living(self) -> int | None:
        """The round whose ranks run here, None if none do or they are being stopped."""
        ranks = self._ranks
        return None if ranks is None or ranks.gone or ranks.stopping else ranks.round

    # What is known ------------------------------------------------------------------------------------

    def observe(self, event: Event, now: Now) -> None:
        """Note an event."""
        match event:
            case Committed(tag=tag, txns=txns):
                if self._in_flight is not None and tag == self._in_flight.tag:
                    committed, self._in_flight = self._in_flight, None
                    self._committed(committed, txns[-1][1])
            case Refused(tag=tag):
                if self._in_flight is not None and tag == self._in_flight.tag:
                    self._in_flight = None
                    self._others_stay = tag == "last"
            case Renewed() | LeaseLost() | LeaseGranted():
                self._holding.observe(event)
            case PortReserved(round=number, port=port):
                self._ports[number] = port
            case Proven(incarnation=incarnation, proof=proof, evidence=evidence):
                self._entrance.proofs[incarnation], self._entrance.evidence[incarnation] = proof, evidence
            case LeaveRequested():
                self._leave = self._leave or event
            case GrowthAllowed():
                self._stopping.allowed(event)
            case StopWanted():
                self._stop_wanted = event
            case KeeperReady(generation=generation):
                self._keeper = generation
            case KeeperLost(generation=generation):
                self._keeper_lost(generation, now)
            case RankEnded() | RanksGone() | RankHung() | RanksHeld():
                self._note(event, now)
            case _:
                pass

    def _committed(self, committed: InFlight, revision: int) -> None:
        self._joined = max(self._joined, committed.joins)
        match committed.tag:
            case "enter" if self._entering is not None:
                self._register(self._entering, revision)
            case "again" if self._registration is not None:
                again = replace(self._registration, revision=revision, lease=self._holding.lease)
                self._registration, self._joined = again, -1  # what it had joined went with the old lease
            case "report":
                self._reported = max(self._reported, committed.round)
                self._ranks = committed.leaves(self._ranks)
            case "done":
                self._done_round = committed.round
            case "stop" | "vote" | "grow":
                self._stopping.committed(committed.tag, committed.round)
            case "leave":
                self._left = True
            case _:
                pass

    def _register(self, entry: Open | Register | Inside, revision: int) -> None:
        self._registration = Registration(entry.keys, entry.node, revision, self._me.lease, self._mirror)

    def _keeper_lost(self, generation: int, now: Now) -> None:
        if self._keeper == generation:
            self._keeper = None
        if self._ranks is not None and self._ranks.generation == generation and not self._ranks.gone:
            self._ranks.keeper_lost = True
            self._ranks.mark(Mark.FAULT, now)

    def _note(self, event: RankEnded | RanksGone | RankHung | RanksHeld, now: Now) -> None:
        """Something became known of ranks; what is said of another round's is ignored."""
        ranks = self._ranks
        if ranks is None or ranks.round != event.round:
            return
        if isinstance(event, RanksHeld):
            self._stopping.held(event)
            return
        ranks.note(event, now)
        self._unfit = self._unfit or bool(ranks.unkillable)

    # What to do ---------------------------------------------------------------------------------------

    def decide(self, now: Now) -> Decision:
        """What to do; see `Machine`."""
        self._effects, self._wake_at_s = [], None
        reason = "this life is over" if self._finished else self._decide(now)
        if self._ranks is not None and self._ranks.stopping:
            self._ranks.mark(Mark.STOPPING, now)
        return Decision(tuple(self._effects), self._wake_at_s, reason)

    def _decide(self, now: Now) -> str:
        registered = self._registration
        if registered is None:
            return self._enter(now)
        took_over = self._entrance.evidence.get(registered.node.succeeds or "", "")
        self._tell_once(("registered",), Registered(registered.node, registered.keys.attempt, took_over))
        over = self._life_over(now, registered)
        if over is not None:
            reason, again = over
            return self._stop_then(reason, code=REQUEUE, again=again and self._leave is None)
        registered = self._stand(registered)
        keys = registered.keys
        if not self._mirror.knows(Scope(keys.outcome), Scope(keys.round), Scope(current(keys.run_id))):
            return "reading the attempt's keys"
        living = self._mirror.record(Current, current(keys.run_id))
        if living is not None and living.attempt != keys.attempt:
            reason = f"attempt {living.attempt} replaced attempt {keys.attempt}"
            return self._stop_then(reason, code=REQUEUE)
        outcome = self._mirror.record(Outcome, keys.outcome)
        if outcome is not None:
            return self._conclude(outcome)
        now_round = self._mirror.record(Round, keys.round)
        if now_round is None:
            return "the attempt has no round"
        if self._leave is not None:
            return self._go(now, now_round, registered, self._leave)
        for what, notice in telling.of_rounds(now_round, registered):
            self._tell_once(what, notice)
        if self._ranks is not None:
            return self._tend(now, self._ranks, now_round, registered)
        return self._await_round(now, now_round, registered)

    # Entering -----------------------------------------------------------------------------------------

    def _enter(self, now: Now) -> str:
        if self._leave is not None:
            return self._finish(SIGNAL_BASE + self._leave.signal, "stopped before it entered the job")
        # What is entered stands on the lease that the life began with: a new one may be known in the same moment.
        if self._holding.lost or self._holding.lease != self._me.lease:
            return self._finish(REQUEUE, "the lease ended before the agent had entered", again=True)
        if self._in_flight is not None:
            return "entering"
        return self._go_in(self._entrance.decide(now, self._mirror), now)

    def _go_in(self, entry: Entry, now: Now) -> str:
        match entry:
            case Open() | Register():
                self._entering = entry
                self._commit("enter", entry.txn)
                return f"entering attempt {entry.keys.attempt}"
            case Inside(revision=revision):
                self._register(entry, revision)
                return self._decide(now)
            case Prove(holder=holder):
                if holder.incarnation not in self._asked_proof:
                    self._asked_proof.add(holder.incarnation)
                    self._effects.append(ProveDead(holder))
                return f"is the holder of {holder.node_id} dead?"
            case Evict(lease=lease):
                if lease not in self._revoked:
                    self._revoked.add(lease)
                    self._effects.append(Revoke(lease))
                return "ending a dead agent's lease"
            case Strike(node_id=node_id, txn=txn):
                self._commit("strike", txn)
                return f"{node_id} of the attempt before is dead: saying so"
            case Pause(reason=reason, until_s=until_s, worth_telling=worth_telling):
                self._wake(until_s)
                if until_s is not None or worth_telling:  # once, not with each node that is waited for
                    self._tell_once(("waiting", until_s and reason), Waiting(reason, until_s))
                return reason
            case Adopt(outcome=outcome):
                self._tell_once(("outcome",), Finished(outcome, late=True))
                return self._finish(outcome.exit_code, outcome.reason)
            case Superseded(message=message) | Refuse(message=message):
                return self._finish(REQUEUE if isinstance(entry, Superseded) else USAGE, message)

    # Ranks --------------------------------------------------------------------------------------------

    def _tend(self, now: Now, ranks: OwnRanks, now_round: Round, registered: Registration) -> str:
        """Follow this node's ranks from their start to their report."""
        keys, number = registered.keys, ranks.round
        if now_round.number != number:
            self._stop(ranks, grace=False, reason=f"round {now_round.number} has begun")
            if not ranks.gone:
                return "ranks of an older round are being stopped"
            if self._unfit:  # it was given up, so it cannot say any more that nobody needs to wait for it
                return self._finish(REQUEUE, "a process of this node outlives SIGKILL, and its round is over")
            self._reported, self._ranks = number, None
            return self._await_round(now, now_round, registered)
        if not self._mirror.knows(keys.interrupts):
            return "reading whether the round was interrupted"
        interrupt = self._mirror.record(Interrupt, keys.interrupt(number))
        if interrupt is not None:
            ranks.mark(Mark.TOLD, now)
            self._stop_for(ranks, interrupt.kind, interrupt.reason)
        fault = ranks.fault()
        if fault is not None:
            self._stop_for(ranks, fault.kind, fault.sentence)
            if interrupt is None:
                if fault.end is not None:
                    self._tell_once(("failed", number), RankFailed(number, fault.end, ranks.where))
                return self._interrupt(now, number, registered, fault)
        if not ranks.gone:
            if not ranks.stopping and self._agree(registered, wish_of(self._stop_wanted, registered)):
                return "a stop is being agreed"
            return "ranks are being stopped" if ranks.stopping else "ranks are running"
        if interrupt is None:
            return self._done(now, ranks, registered)
        return self._report(now, ranks, registered)

    def _interrupt(self, now: Now, number: int, registered: Registration, fault: OwnFault) -> str:
        """Say that the round is over: no coordinator is needed for that."""
        node_id = registered.node.node_id
        interrupt = Interrupt(node_id, fault.kind, node_id, fault.sentence, now.utc, fault.rank)
        self._commit("interrupt", registered.interrupt(number, interrupt))
        return f"interrupting round {number}: {fault.sentence}"

    def _done(self, now: Now, ranks: OwnRanks, registered: Registration) -> str:
        if not self._done_round >= ranks.round:
            self._commit("done", registered.done(ranks.round, ranks.as_extra(now)), ranks.round)
        return "all ranks of this node finished; waiting for the others"

    def _report(self, now: Now, ranks: OwnRanks, registered: Registration) -> str:
        """Write the final report; in the same step join the next round, since nothing lives in this one."""
        if self._in_flight is not None:
            return f"round {ranks.round} is over; {self._in_flight.tag} is being committed"
        node, number = registered.node, ranks.round
        joining = self._join_of(now, number + 1, registered)
        if joining is None and not self._unfit and self._leave is None:
            return f"waiting for a port, or for a renewal, to join round {number + 1}"
        report = ranks.report(node, now, joining, leaves=self._leave is not None, unfit=self._unfit)
        if ranks.unkillable:
            self._tell_once(*telling.unfit(ranks.unkillable))
        joins = number + 1 if joining else -1
        self._commit("report", registered.report(number, report), number, joins=joins)
        return f"reporting on round {number}"

    # Rounds -------------------------------------------------------------------------------------------

    def _await_round(self, now: Now, now_round: Round, registered: Registration) -> str:
        if now_round.phase is Phase.FORMING:
            return self._join(now, now_round.number, registered)
        if now_round.phase is Phase.RUNNING:
            return self._take_seat(now, now_round, registered)
        return "the attempt ends"

    def _join(self, now: Now, number: int, registered: Registration) -> str:
        if self._joined >= number:
            return f"joined round {number}; waiting for the others"
        if self._unfit:
            return "this node is unfit: a process of it outlives SIGKILL"
        joining = self._join_of(now, number, registered)
        if joining is None:
            return f"waiting for a port, or for a renewal, to join round {number}"
        self._commit("join", registered.joins(number, joining), joins=number)
        return f"joining round {number}"

    def _join_of(self, now: Now, number: int, registered: Registration) -> Join | None:
        """The word that says: ready for `number`, nothing of mine lives before it. Only while T is ahead."""
        if self._unfit or self._leave is not None:
            return None
        port = self._ports.get(number)
        if port is None and self._asked_port < number:
            self._asked_port = number
            self._effects.append(ReservePort(number))
        if port is None or now.s >= self._holding.good_until_s:
            return None
        return registered.join(port, now.utc)

    def _take_seat(self, now: Now, now_round: Round, registered: Registration) -> str:
        keys, number, seal = registered.keys, now_round.number, seal_of(now_round)
        if number <= self._reported or seal is None:
            return f"reported on round {number}; waiting for the next"
        key = keys.assignment(*seal, registered.node.node_id)
        if not self._mirror.knows(Scope(key), keys.interrupts):
            return f"reading what this node runs in round {number}"
        seated = self._mirror.record(Assignment, key)
        if seated is None or seated.seat.incarnation != registered.node.incarnation:
            self._tell_once(*telling.running(now_round, None))
            # Nothing of a spare lives in any round: it is ready for the next one before that begins.
            return f"spare in round {number}; {self._join(now, number + 1, registered)}"
        assignment = in_round(seated, now_round)
        if self._mirror.get(keys.interrupt(number)) is not None:
            self._ranks = OwnRanks(assignment, gone=True, stopping=True)
            return self._tend(now, self._ranks, now_round, registered)
        self._tell_once(*telling.running(now_round, assignment))
        if now.s >= self._holding.good_until_s or self._keeper is None or not self._stands:
            return "waiting for a renewal of the lease, or a keeper, to start the ranks"
        self._ranks = OwnRanks(assignment, self._keeper)
        self._ranks.mark(Mark.RELEASED, now)
        self._effects.append(StartRanks(assignment, self._keeper))
        return f"starting ranks of round {number}"

    # Ends ---------------------------------------------------------------------------------------------

    def _life_over(self, now: Now, registered: Registration) -> tuple[str, bool] | None:
        """Why this life is over, and whether another one follows; None while it goes on."""
        if self._left:
            return None
        gives_up_at_s = self._holding.gives_up_at_s
        if gives_up_at_s is not None and now.s >= gives_up_at_s:
            return f"etcd was away for longer than {self._spec.outage_limit_s + RETURN_LIMIT_S:g} s", False
        self._wake(gives_up_at_s)
        if self._holding.taken(registered):
            return f"the registration of {registered.node.node_id} is another agent's", True
        said = self._in_flight is not None and self._in_flight.tag == "leave"  # its answer is on the way
        if self._leave is not None and not said and self._holding.missing(registered):
            self._left = self._others_stay = (
                True  # by its own word, or since the lease ended: nobody can tell
            )
        return None

    def _stand(self, registered: Registration) -> Registration:
        """See to it that this incarnation is registered on the lease that is renewed, which then moves T."""
        if self._left:
            self._stands = True  # what it still writes needs no registration
            return registered
        stand = self._holding.stand(registered, self._ranks)
        self._stands = stand.stands
        if stand.registered != registered:
            self._registration, self._joined = stand.registered, -1
        if stand.again is not None:
            self._commit("again", stand.again)
        self._effects += stand.effects
        return stand.registered

    def _conclude(self, outcome: Outcome) -> str:
        text = self._stop_then(outcome.reason, code=outcome.exit_code, notice=Finished(outcome))
        if self._ranks is not None and not self._ranks.gone:
            return f"the attempt is over: {text}"
        return outcome.reason

    def _stop_then(self, reason: str, *, code: int, again: bool = False, notice: Notice | None = None) -> str:
        """Kill the ranks, then end this life."""
        ranks = self._ranks
        if ranks is not None and not ranks.gone:
            self._stop(ranks, grace=False, reason=reason)
            return "ranks are being stopped"
        if notice is not None:
            self._tell_once(("over",), notice)
        if self._leave is not None and notice is None:
            code = SIGNAL_BASE + self._leave.signal
        # Another life would join rounds beside a process of this one that outlives SIGKILL.
        return self._finish(code, reason, again=again and not self._unfit)

    def _go(self, now: Now, now_round: Round, registered: Registration, leave: LeaveRequested) -> str:
        """Leave: stop the ranks, say so, and write the outcome if nobody else is left to."""
        ranks = self._ranks
        reason = f"{registered.node.node_id} leaves: it was sent {signal_name(leave.signal)}"
        seated = ranks is not None and ranks.round == now_round.number and not self._done_round >= ranks.round
        if ranks is not None and seated and not ranks.stopping and now.s < leave.agree_until_s:
            self._wake(leave.agree_until_s)
            wanted = Stop(registered.node.node_id, reason)
            if not ranks.gone and self._agree(registered, wanted):
                return "leaving: all ranks of the job stop at one step"
        if ranks is not None:
            self._stop(ranks, grace=True, reason=reason)
        if ranks is not None and seated:
            interrupt = self._mirror.get(registered.keys.interrupt(ranks.round))
            if interrupt is None:
                self._interrupt(now, ranks.round, registered, OwnFault(FaultKind.NODE_LEFT, reason))
            elif ranks.gone:
                self._report(now, ranks, registered)
        if ranks is not None and not ranks.gone:
            return "leaving: ranks are being stopped"
        if self._leave_by_s is None:
            self._leave_by_s = now.s + LEAVE_LIMIT_S
        self._wake(self._leave_by_s)
        if now.s >= self._leave_by_s:
            return self._finish(SIGNAL_BASE + leave.signal, f"{reason}; etcd did not answer in time")
        if not self._left:
            if self._ranks is None or not seated:
                self._commit("leave", registered.departure())
            return "leaving"
        return self._last_one_out(now, now_round, registered, leave)

    def _last_one_out(
        self, now: Now, now_round: Round, registered: Registration, leave: LeaveRequested
    ) -> str:
        """The outcome of a job that everybody left. Refused means that others stay: it is theirs."""
        code, reason = SIGNAL_BASE + leave.signal, f"told to stop by {signal_name(leave.signal)}"
        if self._others_stay or not self._holding.all_dead(registered, now, self._book):
            return self._finish(code, f"{reason}; others stay in it")
        if self._asked_last or self._in_flight is not None:
            return "leaving: reading how the job ended"
        outcome = last_outcome(now_round, code, reason, now, self._me.launch_id, leave.ending)
        self._commit("last", registered.last_word(outcome))
        self._asked_last = True
        return "leaving: writing the outcome if nobody stays"

    def _agree(self, registered: Registration, wanted: Stop | None) -> bool:
        """Take the next step towards a stop of all ranks at one step; False when there is none to wait for."""
        ranks = self._ranks
        if ranks is None:
            return False
        step = self._stopping.next(registered, ranks.round, wanted)
        self._effects.extend(step.effects)
        if step.txn is not None:
            self._commit(step.tag, step.txn, ranks.round)
        return step.waits

    # Small steps --------------------------------------------------------------------------------------

    def _stop_for(self, ranks: OwnRanks, kind: FaultKind, reason: str) -> None:
        """Stop the ranks for a fault; hung ones are looked at first and get no grace, they could not use it."""
        hung = kind is FaultKind.HANG
        self._stop(ranks, grace=not hung, reason=reason, hung=hung)

    def _stop(self, ranks: OwnRanks, *, grace: bool, reason: str, hung: bool = False) -> None:
        """Stop the ranks once; a stop without grace may follow one with it."""
        if ranks.gone or ranks.killing or (ranks.stopping and (grace or hung)):
            return
        ranks.stopping, ranks.killing = True, not (grace or hung)
        number = ranks.round
        self._effects.append(KillHung(number, reason) if hung else StopRanks(number, grace, reason))
        if self._asked_port <= ranks.round and self._leave is None:
            self._asked_port = ranks.round + 1
            self._effects.append(ReservePort(ranks.round + 1))

    def _commit(self, tag: str, txn: Txn, number: int = -1, *, joins: int = -1) -> None:
        """One commit at a time: the next is decided on what the last one changed."""
        if self._in_flight is None and (self._stands or tag == "again"):
            self._in_flight = InFlight(tag, number, joins)
            self._effects.append(Commit(tag, (txn,)))

    def _finish(self, code: int, reason: str, *, again: bool = False) -> str:
        self._finished = True
        self._effects.append(Finish(code, reason, again))
        return reason

    def _wake(self, at_s: float | None) -> None:
        if at_s is not None:
            self._wake_at_s = at_s if self._wake_at_s is None else min(self._wake_at_s, at_s)

    # Telling people -----------------------------------------------------------------------------------

    def _tell_once(self, what: object, notice: Notice) -> None:
        if what not in self._told:
            self._told.add(what)
            self._effects.append(Notify(notice))
