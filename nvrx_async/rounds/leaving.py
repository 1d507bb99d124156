"""How an agent that was told to stop leaves: ranks stop, it says so, the last one out writes the outcome. Pure."""

from __future__ import annotations

from nvrx_async.faults import signal_name
from nvrx_async.job.records import FaultKind, Round, Stop
from nvrx_async.rounds.attendance import Attendance
from nvrx_async.rounds.closing import last_outcome
from nvrx_async.rounds.events import LeaveRequested, Now
from nvrx_async.rounds.holding import Holding
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.outbox import Outbox
from nvrx_async.rounds.own import OwnFault, OwnRanks
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.registration import Registration

SIGNAL_BASE = 128
LEAVE_LIMIT_S = 5.0
"""How long a leaving agent tries to say so to etcd once its ranks are gone."""


class Leaving:
    """See the module. `launch_id` is the launch's, for the outcome."""

    def __init__(
        self,
        mirror: Mirror,
        holding: Holding,
        book: Book,
        out: Outbox,
        attendance: Attendance,
        launch_id: str | None,
    ) -> None:
        self._mirror = mirror
        self._holding = holding
        self._book = book
        self._out = out
        self._attendance = attendance
        self._launch_id = launch_id
        self._asked: LeaveRequested | None = None
        self._left = False
        self._asked_last = False
        self._others_stay = False
        self._by_s: float | None = None

    # What is known ------------------------------------------------------------------------------------

    @property
    def asked(self) -> LeaveRequested | None:
        """What made this agent leave; None while it stays."""
        return self._asked

    @property
    def has_left(self) -> bool:
        """Whether its registration is gone: what it still writes needs none."""
        return self._left

    def ask(self, event: LeaveRequested) -> None:
        """It is to leave; the first word counts."""
        self._asked = self._asked or event

    def left(self) -> None:
        """It has said that it leaves."""
        self._left = True

    def refused(self, tag: str) -> None:
        """A commit was refused: the last word, because others stay."""
        self._others_stay = tag == "last"

    def note_missing(self, registered: Registration) -> None:
        """Its key may be gone without its word; whether others stay, nobody can tell then."""
        flying = self._out.in_flight
        said = flying is not None and flying.tag == "leave"  # its answer is on the way
        if self._asked is not None and not said and self._holding.missing(registered):
            self._left = self._others_stay = True  # by its own word, or since the lease ended

    # What to do ---------------------------------------------------------------------------------------

    def decide(self, now: Now, now_round: Round, registered: Registration, leave: LeaveRequested) -> str:
        """Stop the ranks, say so, and write the outcome if nobody else is left to."""
        ranks, out = self._attendance.ranks, self._out
        reason = f"{registered.node.node_id} leaves: it was sent {signal_name(leave.signal)}"
        seated = (
            ranks is not None
            and ranks.round == now_round.number
            and not self._attendance.is_done(ranks.round)
        )
        if ranks is not None and seated and not ranks.stopping and now.s < leave.agree_until_s:
            out.wake(leave.agree_until_s)
            wanted = Stop(registered.node.node_id, reason)
            if not ranks.gone and self._attendance.agree(registered, wanted):
                return "leaving: all ranks of the job stop at one step"
        if ranks is not None:
            self._attendance.stop(ranks, grace=True, reason=reason)
        if ranks is not None and seated:
            self._end_round(now, ranks, registered, reason)
        if self._attendance.lives:
            return "leaving: ranks are being stopped"
        if self._by_s is None:
            self._by_s = now.s + LEAVE_LIMIT_S
        out.wake(self._by_s)
        if now.s >= self._by_s:
            return out.finish(SIGNAL_BASE + leave.signal, f"{reason}; etcd did not answer in time")
        if not self._left:
            if ranks is None or not seated:
                out.commit("leave", registered.departure())
            return "leaving"
        return self._last_one_out(now, now_round, registered, leave)

    def _end_round(self, now: Now, ranks: OwnRanks, registered: Registration, reason: str) -> None:
        """Interrupt the round, and report once nothing of it lives here."""
        interrupt = self._mirror.get(registered.keys.interrupt(ranks.round))
        if interrupt is None:
            fault = OwnFault(FaultKind.NODE_LEFT, reason)
            self._attendance.interrupt(now, ranks.round, registered, fault)
        elif ranks.gone:
            self._attendance.report(now, ranks, registered)

    def _last_one_out(
        self, now: Now, now_round: Round, registered: Registration, leave: LeaveRequested
    ) -> str:
        """The outcome of a job that everybody left. Refused means that others stay: it is theirs."""
        code, reason = SIGNAL_BASE + leave.signal, f"told to stop by {signal_name(leave.signal)}"
        if self._others_stay or not self._holding.all_dead(registered, now, self._book):
            return self._out.finish(code, f"{reason}; others stay in it")
        if self._asked_last or self._out.in_flight is not None:
            return "leaving: reading how the job ended"
        outcome = last_outcome(now_round, code, reason, now, self._launch_id, leave.ending)
        self._out.commit("last", registered.last_word(outcome))
        self._asked_last = True
        return "leaving: writing the outcome if nobody stays"
