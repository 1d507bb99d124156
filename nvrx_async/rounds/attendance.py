"""How this agent takes part in rounds: it joins, starts the ranks it was assigned, stops them, reports. Pure.

Each step says in a sentence where this node stands in the round.
"""

from __future__ import annotations

from nvrx_async.etcd.types import Scope
from nvrx_async.job.records import Assignment, FaultKind, Interrupt, Join, Mark, Phase, Round, Stop
from nvrx_async.rounds import telling
from nvrx_async.rounds.effects import KillHung, RankFailed, ReservePort, StartRanks, StopRanks
from nvrx_async.rounds.events import (
    Event,
    GrowthAllowed,
    KeeperLost,
    KeeperReady,
    LeaveRequested,
    Now,
    PortReserved,
    RankEnded,
    RankHung,
    RanksGone,
    RanksHeld,
    StopWanted,
)
from nvrx_async.rounds.holding import Holding
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.outbox import Outbox
from nvrx_async.rounds.own import InFlight, OwnFault, OwnRanks
from nvrx_async.rounds.registration import Registration
from nvrx_async.rounds.seating import in_round
from nvrx_async.rounds.stopping import Stopping, wish_of
from nvrx_async.rounds.world import seal_of

REQUEUE = 75


class Attendance:
    """See the module.

    Attributes:
        ranks: those of the round that this node was last assigned to, until they are reported.
        unfit: a process of this node outlives SIGKILL; it can join no round any more.
    """

    def __init__(self, mirror: Mirror, holding: Holding, out: Outbox) -> None:
        self._mirror = mirror
        self._holding = holding
        self._out = out
        self.ranks: OwnRanks | None = None
        self.unfit = False
        self._reported = -1
        self._joined = -1
        self._done_round = -1
        self._ports: dict[int, int] = {}
        self._asked_port = -1
        self._keeper: int | None = None
        self._stopping = Stopping()
        self._stop_wanted: StopWanted | None = None
        self._leaves = False

    @property
    def lives(self) -> bool:
        """Whether a rank may live here."""
        return self.ranks is not None and not self.ranks.gone

    def is_done(self, number: int) -> bool:
        """Whether all ranks of this node finished in this round, as etcd knows."""
        return self._done_round >= number

    # What is known ------------------------------------------------------------------------------------

    def observe(self, event: Event, now: Now) -> None:
        """Note an event."""
        match event:
            case PortReserved(round=number, port=port):
                self._ports[number] = port
            case GrowthAllowed():
                self._stopping.allowed(event)
            case StopWanted():
                self._stop_wanted = event
            case LeaveRequested():
                self._leaves = True
            case KeeperReady(generation=generation):
                self._keeper = generation
            case KeeperLost(generation=generation):
                self._keeper_lost(generation, now)
            case RankEnded() | RanksGone() | RankHung() | RanksHeld():
                self._note(event, now)
            case _:
                pass

    def committed(self, committed: InFlight) -> None:
        """What this agent wrote of a round is in etcd."""
        self._joined = max(self._joined, committed.joins)
        match committed.tag:
            case "report":
                self._reported = max(self._reported, committed.round)
                self.ranks = committed.leaves(self.ranks)
            case "done":
                self._done_round = committed.round
            case "stop" | "vote" | "grow":
                self._stopping.committed(committed.tag, committed.round)
            case _:
                pass

    def join_anew(self) -> None:
        """What was joined went with the old lease."""
        self._joined = -1

    def _keeper_lost(self, generation: int, now: Now) -> None:
        if self._keeper == generation:
            self._keeper = None
        if self.ranks is not None and self.ranks.generation == generation and not self.ranks.gone:
            self.ranks.keeper_lost = True
            self.ranks.mark(Mark.FAULT, now)

    def _note(self, event: RankEnded | RanksGone | RankHung | RanksHeld, now: Now) -> None:
        """Something became known of ranks; what is said of another round's is ignored."""
        ranks = self.ranks
        if ranks is None or ranks.round != event.round:
            return
        if isinstance(event, RanksHeld):
            self._stopping.held(event)
            return
        ranks.note(event, now)
        self.unfit = self.unfit or bool(ranks.unkillable)

    # What to do ---------------------------------------------------------------------------------------

    def decide(self, now: Now, now_round: Round, registered: Registration) -> str:
        """The next step in the round of now."""
        if self.ranks is not None:
            return self._tend(now, self.ranks, now_round, registered)
        return self._await_round(now, now_round, registered)

    # Ranks --------------------------------------------------------------------------------------------

    def _tend(self, now: Now, ranks: OwnRanks, now_round: Round, registered: Registration) -> str:
        """Follow this node's ranks from their start to their report."""
        keys, number = registered.keys, ranks.round
        if now_round.number != number:
            self.stop(ranks, grace=False, reason=f"round {now_round.number} has begun")
            if not ranks.gone:
                return "ranks of an older round are being stopped"
            if self.unfit:  # it was given up, so it cannot say any more that nobody needs to wait for it
                return self._out.finish(
                    REQUEUE, "a process of this node outlives SIGKILL, and its round is over"
                )
            self._reported, self.ranks = number, None
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
                    self._out.tell_once(("failed", number), RankFailed(number, fault.end, ranks.where))
                return self.interrupt(now, number, registered, fault)
        if not ranks.gone:
            if not ranks.stopping and self.agree(registered, wish_of(self._stop_wanted, registered)):
                return "a stop is being agreed"
            return "ranks are being stopped" if ranks.stopping else "ranks are running"
        if interrupt is None:
            return self._done(now, ranks, registered)
        return self.report(now, ranks, registered)

    def interrupt(self, now: Now, number: int, registered: Registration, fault: OwnFault) -> str:
        """Say that the round is over: no coordinator is needed for that."""
        node_id = registered.node.node_id
        interrupt = Interrupt(node_id, fault.kind, node_id, fault.sentence, now.utc, fault.rank)
        self._out.commit("interrupt", registered.interrupt(number, interrupt))
        return f"interrupting round {number}: {fault.sentence}"

    def _done(self, now: Now, ranks: OwnRanks, registered: Registration) -> str:
        if not self._done_round >= ranks.round:
            self._out.commit("done", registered.done(ranks.round, ranks.as_extra(now)), ranks.round)
        return "all ranks of this node finished; waiting for the others"

    def report(self, now: Now, ranks: OwnRanks, registered: Registration) -> str:
        """Write the final report; in the same step join the next round, since nothing lives in this one."""
        if self._out.in_flight is not None:
            return f"round {ranks.round} is over; {self._out.in_flight.tag} is being committed"
        node, number = registered.node, ranks.round
        joining = self._join_of(now, number + 1, registered)
        if joining is None and not self.unfit and not self._leaves:
            return f"waiting for a port, or for a renewal, to join round {number + 1}"
        report = ranks.report(node, now, joining, leaves=self._leaves, unfit=self.unfit)
        if ranks.unkillable:
            self._out.tell_once(*telling.unfit(ranks.unkillable))
        joins = number + 1 if joining else -1
        self._out.commit("report", registered.report(number, report), number, joins=joins)
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
        if self.unfit:
            return "this node is unfit: a process of it outlives SIGKILL"
        joining = self._join_of(now, number, registered)
        if joining is None:
            return f"waiting for a port, or for a renewal, to join round {number}"
        self._out.commit("join", registered.joins(number, joining), joins=number)
        return f"joining round {number}"

    def _join_of(self, now: Now, number: int, registered: Registration) -> Join | None:
        """The word that says: ready for `number`, nothing of mine lives before it. Only while T is ahead."""
        if self.unfit or self._leaves:
            return None
        port = self._ports.get(number)
        if port is None and self._asked_port < number:
            self._asked_port = number
            self._out.add(ReservePort(number))
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
            self._out.tell_once(*telling.running(now_round, None))
            # Nothing of a spare lives in any round: it is ready for the next one before that begins.
            return f"spare in round {number}; {self._join(now, number + 1, registered)}"
        assignment = in_round(seated, now_round)
        if self._mirror.get(keys.interrupt(number)) is not None:
            self.ranks = OwnRanks(assignment, gone=True, stopping=True)
            return self._tend(now, self.ranks, now_round, registered)
        self._out.tell_once(*telling.running(now_round, assignment))
        if now.s >= self._holding.good_until_s or self._keeper is None or not self._out.stands:
            return "waiting for a renewal of the lease, or a keeper, to start the ranks"
        self.ranks = OwnRanks(assignment, self._keeper)
        self.ranks.mark(Mark.RELEASED, now)
        self._out.add(StartRanks(assignment, self._keeper))
        return f"starting ranks of round {number}"

    # Stops ------------------------------------------------------------------------------------------

    def agree(self, registered: Registration, wanted: Stop | None) -> bool:
        """Take the next step towards a stop of all ranks at one step; False when there is none to wait for."""
        ranks = self.ranks
        if ranks is None:
            return False
        step = self._stopping.next(registered, ranks.round, wanted)
        self._out.add(*step.effects)
        if step.txn is not None:
            self._out.commit(step.tag, step.txn, ranks.round)
        return step.waits

    def _stop_for(self, ranks: OwnRanks, kind: FaultKind, reason: str) -> None:
        """Stop the ranks for a fault; hung ones are looked at first and get no grace, they could not use it."""
        hung = kind is FaultKind.HANG
        self.stop(ranks, grace=not hung, reason=reason, hung=hung)

    def stop(self, ranks: OwnRanks, *, grace: bool, reason: str, hung: bool = False) -> None:
        """Stop the ranks once; a stop without grace may follow one with it."""
        if ranks.gone or ranks.killing or (ranks.stopping and (grace or hung)):
            return
        ranks.stopping, ranks.killing = True, not (grace or hung)
        number = ranks.round
        self._out.add(KillHung(number, reason) if hung else StopRanks(number, grace, reason))
        if self._asked_port <= ranks.round and not self._leaves:
            self._asked_port = ranks.round + 1
            self._out.add(ReservePort(ranks.round + 1))
