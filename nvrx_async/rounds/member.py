"""The member machine: what this agent does with its own ranks and its own keys.

It enters the job, joins rounds, starts the ranks it was assigned, stops them when the round is over, reports
what became of them, and leaves. What other agents do is the coordinator's to judge.
"""

from __future__ import annotations

from dataclasses import replace

from nvrx_async.etcd.types import Scope
from nvrx_async.job.keys import current
from nvrx_async.job.records import (
    Current,
    JobSpec,
    Mark,
    Outcome,
    Round,
)
from nvrx_async.rounds import telling
from nvrx_async.rounds.attendance import REQUEUE, Attendance
from nvrx_async.rounds.effects import (
    Decision,
    Finished,
    Notice,
    ProveDead,
    Registered,
    Revoke,
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
    LeaseGranted,
    LeaseLost,
    LeaveRequested,
    Now,
    Proven,
    Refused,
    Renewed,
)
from nvrx_async.rounds.following import Following
from nvrx_async.rounds.holding import RETURN_LIMIT_S, Holding
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.leaving import SIGNAL_BASE, Leaving
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.outbox import Outbox
from nvrx_async.rounds.own import InFlight
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.registration import Registration

USAGE = 2


class Member:
    """See the module. One object lives for one life of the agent: one incarnation."""

    def __init__(self, me: Identity, spec: JobSpec, mirror: Mirror, book: Book | None = None) -> None:
        self._me = me
        self._spec = spec
        self._mirror = mirror
        self._out = Outbox()
        self._entrance = Entrance(me, spec)
        self._following = Following(mirror, spec)
        self._entering: Open | Register | None = None
        self._registration: Registration | None = None
        self._holding = Holding(me.lease, spec, mirror)
        self._attendance = Attendance(mirror, self._holding, self._out)
        self._leaving = Leaving(
            mirror, self._holding, book or Book(), self._out, self._attendance, me.launch_id
        )
        self._asked_proof: set[str] = set()
        self._revoked: set[int] = set()

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
        ranks = self._attendance.ranks
        return None if ranks is None or ranks.gone or ranks.stopping else ranks.round

    # What is known ------------------------------------------------------------------------------------

    def observe(self, event: Event, now: Now) -> None:
        """Note an event."""
        self._attendance.observe(event, now)
        match event:
            case Committed(tag=tag, txns=txns):
                committed = self._out.answered(tag)
                if committed is not None:
                    self._committed(committed, txns[-1][1])
            case Refused(tag=tag):
                if self._out.answered(tag) is not None:
                    self._leaving.refused(tag)
            case Renewed() | LeaseLost() | LeaseGranted():
                self._holding.observe(event)
            case Proven(incarnation=incarnation, proof=proof, evidence=evidence):
                self._entrance.proofs[incarnation], self._entrance.evidence[incarnation] = proof, evidence
            case LeaveRequested():
                self._leaving.ask(event)
            case _:
                pass

    def _committed(self, committed: InFlight, revision: int) -> None:
        self._attendance.committed(committed)
        match committed.tag:
            case "enter" if self._entering is not None:
                self._register(self._entering, revision)
            case "again" if self._registration is not None:
                self._registration = replace(self._registration, revision=revision, lease=self._holding.lease)
                self._attendance.join_anew()
            case "leave":
                self._leaving.left()
            case _:
                pass

    def _register(self, entry: Open | Register | Inside, revision: int) -> None:
        self._registration = Registration(entry.keys, entry.node, revision, self._me.lease, self._mirror)

    # What to do ---------------------------------------------------------------------------------------

    def decide(self, now: Now) -> Decision:
        """What to do; see `Machine`."""
        self._out.begin()
        reason = "this life is over" if self._out.finished else self._decide(now)
        ranks = self._attendance.ranks
        if ranks is not None and ranks.stopping:
            ranks.mark(Mark.STOPPING, now)
        return self._out.decision(reason)

    def _decide(self, now: Now) -> str:
        registered = self._registration
        if registered is None:
            return self._enter(now)
        took_over = self._entrance.evidence.get(registered.node.succeeds or "", "")
        self._out.tell_once(("registered",), Registered(registered.node, registered.keys.attempt, took_over))
        over = self._life_over(now, registered)
        if over is not None:
            reason, again = over
            return self._stop_then(reason, code=REQUEUE, again=again and self._leaving.asked is None)
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
        leave = self._leaving.asked
        if leave is not None:
            return self._leaving.decide(now, now_round, registered, leave)
        for what, notice in telling.of_rounds(now_round, registered):
            self._out.tell_once(what, notice)
        return self._attendance.decide(now, now_round, registered)

    # Entering -----------------------------------------------------------------------------------------

    def _enter(self, now: Now) -> str:
        leave = self._leaving.asked
        if leave is not None:
            return self._out.finish(SIGNAL_BASE + leave.signal, "stopped before it entered the job")
        # What is entered stands on the lease that the life began with: a new one may be known in the same moment.
        if self._holding.lost or self._holding.lease != self._me.lease:
            return self._out.finish(REQUEUE, "the lease ended before the agent had entered", again=True)
        if self._out.in_flight is not None:
            return "entering"
        return self._go_in(self._entrance.decide(now, self._mirror), now)

    def _go_in(self, entry: Entry, now: Now) -> str:
        match entry:
            case Open() | Register():
                self._entering = entry
                self._out.commit("enter", entry.txn)
                return f"entering attempt {entry.keys.attempt}"
            case Inside(revision=revision):
                self._register(entry, revision)
                return self._decide(now)
            case Prove(holder=holder):
                if holder.incarnation not in self._asked_proof:
                    self._asked_proof.add(holder.incarnation)
                    self._out.add(ProveDead(holder))
                return f"is the holder of {holder.node_id} dead?"
            case Evict(lease=lease):
                if lease not in self._revoked:
                    self._revoked.add(lease)
                    self._out.add(Revoke(lease))
                return "ending a dead agent's lease"
            case Strike(node_id=node_id, txn=txn):
                self._out.commit("strike", txn)
                return f"{node_id} of the attempt before is dead: saying so"
            case Pause(reason=reason, until_s=until_s, worth_telling=worth_telling):
                self._out.wake(until_s)
                if until_s is not None or worth_telling:  # once, not with each node that is waited for
                    self._out.tell_once(("waiting", until_s and reason), Waiting(reason, until_s))
                return reason
            case Adopt(outcome=outcome):
                self._out.tell_once(("outcome",), Finished(outcome, late=True))
                return self._out.finish(outcome.exit_code, outcome.reason)
            case Superseded(message=message) | Refuse(message=message):
                return self._out.finish(REQUEUE if isinstance(entry, Superseded) else USAGE, message)

    # Ends ---------------------------------------------------------------------------------------------

    def _life_over(self, now: Now, registered: Registration) -> tuple[str, bool] | None:
        """Why this life is over, and whether another one follows; None while it goes on."""
        if self._leaving.has_left:
            return None
        gives_up_at_s = self._holding.gives_up_at_s
        if gives_up_at_s is not None and now.s >= gives_up_at_s:
            return f"etcd was away for longer than {self._spec.outage_limit_s + RETURN_LIMIT_S:g} s", False
        self._out.wake(gives_up_at_s)
        if self._holding.taken(registered):
            return f"the registration of {registered.node.node_id} is another agent's", True
        self._leaving.note_missing(registered)
        return None

    def _stand(self, registered: Registration) -> Registration:
        """See to it that this incarnation is registered on the lease that is renewed, which then moves T."""
        if self._leaving.has_left:
            self._out.stands = True  # what it still writes needs no registration
            return registered
        stand = self._holding.stand(registered, self._attendance.ranks)
        self._out.stands = stand.stands
        if stand.registered != registered:
            self._registration = stand.registered
            self._attendance.join_anew()
        if stand.again is not None:
            self._out.commit("again", stand.again)
        self._out.add(*stand.effects)
        return stand.registered

    def _conclude(self, outcome: Outcome) -> str:
        text = self._stop_then(outcome.reason, code=outcome.exit_code, notice=Finished(outcome))
        if self._attendance.lives:
            return f"the attempt is over: {text}"
        return outcome.reason

    def _stop_then(self, reason: str, *, code: int, again: bool = False, notice: Notice | None = None) -> str:
        """Kill the ranks, then end this life."""
        ranks = self._attendance.ranks
        if ranks is not None and not ranks.gone:
            self._attendance.stop(ranks, grace=False, reason=reason)
            return "ranks are being stopped"
        if notice is not None:
            self._out.tell_once(("over",), notice)
        leave = self._leaving.asked
        if leave is not None and notice is None:
            code = SIGNAL_BASE + leave.signal
        # Another life would join rounds beside a process of this one that outlives SIGKILL.
        return self._out.finish(code, reason, again=again and not self._attendance.unfit)
