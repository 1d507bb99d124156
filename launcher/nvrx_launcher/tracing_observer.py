"""One life of the agent told as spans and metrics. Pure: it hears in order what was seen when, by `tracing_lookout`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from nvrx_async.etcd.types import Put, Txn
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import FaultKind, Interrupt, Mark, Outcome, Phase, RankEnd, Round
from nvrx_async.job.trace import opener_of
from nvrx_async.rounds.effects import Finished, Notice, Registered, RoundRunning
from nvrx_async.rounds.events import Deposed, Elected, Event, KeeperLost, RankEnded, RankHung, RanksGone
from nvrx_launcher.tracing_rank_starts import RankStart
from nvrx_launcher.tracing_round import About, NodeRound
from nvrx_telemetry import semconv
from nvrx_telemetry.model import FinishedSpan, SpanLink, Value

_FOUND_BY_OTHERS = frozenset({FaultKind.HANG, FaultKind.COLLECTIVE_MISSED})


class Told(Protocol):
    """Takes what the observer tells."""

    def emit(self, span: FinishedSpan) -> None:
        """Take a finished span."""

    def flush(self) -> None:
        """Have what was told sent soon: the process may not live much longer."""

    def measure(self, name: str, value: float, attributes: Mapping[str, Value]) -> None:
        """Take a value of a counter or histogram."""

    def gauges(self, name: str, measured: Iterable[tuple[float, Mapping[str, Value]]]) -> None:
        """Take what is now."""


@dataclass(frozen=True, slots=True)
class RanksLook:
    """This node's ranks at a moment: how far the last of them is, each of them, and how many are in each state.

    `oldest_report_s`: seconds since the one that reported longest ago did, None if none reports.
    """

    round: int
    marks: Mapping[Mark, float]
    starts: Mapping[int, RankStart]
    step: int | None
    states: Mapping[str, int]
    oldest_report_s: float | None


class Observer:
    """See the module. All moments are seconds of CLOCK_BOOTTIME; `began_s`: when the agent did."""

    def __init__(self, about: About, told: Told, began_s: float) -> None:
        self._about = about
        self._told = told
        self._began_s = self._ready_s = began_s
        self._keys: AttemptKeys | None = None
        self._joined: dict[int, float] = {}
        self._leading = False
        self._ranks_began_s: dict[int, float] = {}
        self._trained_s = 0.0
        self.round: NodeRound | None = None
        self.before: NodeRound | None = None

    # What machines are told ---------------------------------------------------------------------------

    def observe(self, event: Event, now_s: float, hung_since_s: float | None = None) -> None:
        """An event. `hung_since_s`: when a rank that hangs last gave a sign of life, where that is known."""
        match event:
            case Elected() | Deposed():
                self._leading = isinstance(event, Elected)
            case RankEnded(round=number, end=end):
                self._ended(number, end, now_s)
            case RankHung(round=number, rank=rank, sentence=sentence):
                self._faulted(number, FaultKind.HANG, f"rank {rank} {sentence}", rank, hung_since_s, now_s)
            case KeeperLost() if self.round is not None and self.round.at.released_s is not None:
                lost = FaultKind.KEEPER_LOST
                self._faulted(self.round.number, lost, "the keeper died", None, None, now_s)
            case RanksGone(round=number, marks=marks):
                self._gone(number, marks, now_s)
            case _:
                pass

    def opened(self, now_round: Round, now_s: float) -> None:
        """A round is seen for the first time."""
        old = self.round
        if old is not None:
            self._trains({}, last=True)
            old.closes(now_s, self._outcome(old, "peer_restart"))
        made = NodeRound(self._about, now_round, now_s, self._told.emit)
        made.at.joined_s = self._joined.pop(now_round.number, None)
        if old is None and now_round.phase is not Phase.FORMING:
            made.membership = "late_joiner"
        if made.opened_here and old is not None:
            end = now_round.verdict
            old.decided(now_s, end, end.reason if end is not None else "")
            if end is not None:
                kinds = {semconv.ATTR_LEVEL: end.level.value, semconv.ATTR_KIND: end.root.kind.value}
                self._told.measure(semconv.METRIC_RESTARTS, 1, kinds)
        made.opens(self._ready_s, _links(old, now_round))
        if made.opened_here:
            self._told.flush()  # all other spans of the round, on all nodes, are below this one
        self.before, self.round = old, made

    def interrupted(self, number: int, interrupt: Interrupt, now_s: float) -> None:
        """The round is seen to be over."""
        current = self._of(number)
        if current is None or current.at.told_s is not None:
            return
        current.told(now_s, interrupt)
        if interrupt.by != self._about.node_id:
            late_s = now_s - current.notified_since_s(interrupt, now_s)
            self._told.measure(semconv.METRIC_NOTIFICATION, late_s, {})
        self._told.flush()

    # What drivers saw ---------------------------------------------------------------------------------

    def notice(self, notice: Notice, now_s: float) -> None:
        """People are told something."""
        match notice:
            case Registered(node=node, attempt=attempt):
                self._about = replace(self._about, node_id=node.node_id, attempt=attempt)
                self._keys = AttemptKeys(self._about.run_id, attempt)
            case RoundRunning() if self.round is not None and self.round.number == notice.number:
                self.round.runs(now_s, notice.assignment, notice.nodes, notice.world_size)
            case Finished(outcome=outcome):
                self._finished(outcome, now_s)
            case _:
                pass

    def committed(self, txn: Txn, now_s: float) -> None:
        """A transaction of this agent took effect."""
        current, keys, node_id = self.round, self._keys, self._about.node_id
        if keys is None or current is None:
            return
        written = {one.key for one in txn.then if isinstance(one, Put)}
        if keys.fault(current.number, node_id) in written:
            current.reported(now_s)
            self._joined[current.number + 1] = self._ready_s = now_s  # a report joins the next round
        elif self.before is not None and keys.fault(self.before.number, node_id) in written:
            self.before.reported(now_s)  # the next round was seen before the answer
            current.joined(now_s)
        if keys.join(current.number, node_id) in written:
            self._ready_s = now_s
            current.joined(now_s)
        if keys.join(current.number + 1, node_id) in written:  # a spare's
            self._joined[current.number + 1] = self._ready_s = now_s

    def released(self, number: int, now_s: float) -> None:
        """Ranks are ordered to start."""
        if (current := self._of(number)) is not None:
            current.released(now_s)

    def prepared(self, number: int, now_s: float, resources: Mapping[int, Mapping[str, Value]]) -> None:
        """What ranks get is ready; attributes of their processes, by local rank."""
        if (current := self._of(number)) is not None:
            current.prepared(now_s, resources)

    def rank_began(self, number: int, local_rank: int, now_s: float) -> None:
        """A rank's process exists."""
        self._ranks_began_s[local_rank] = now_s
        if (current := self._of(number)) is not None:
            current.rank_began(now_s, local_rank)

    def ranks_are(self, number: int, starts: Mapping[int, RankStart]) -> None:
        """How far ranks have come, by local rank."""
        for known in (self.round, self.before):  # of some it is heard when the next round has begun
            if known is not None and known.number == number:
                known.ranks_are(starts)

    def explaining(self, number: int, now_s: float) -> None:
        """Evidence of a hang is being taken."""
        if (current := self._of(number)) is not None:
            current.explaining(now_s)

    def stopping(self, number: int, now_s: float) -> None:
        """Ranks are told to stop."""
        if (current := self._of(number)) is not None:
            current.stopping(now_s)

    def looked(self, look: RanksLook, now_s: float) -> None:
        """The ranks as they are now."""
        current = self._of(look.round)
        if current is None:
            return
        self._trains(look.marks)
        current.ranks_are(look.starts)
        current.goes_on(now_s, look.step)
        total_s = now_s - self._began_s
        trained_s = self._trained_s + self._lasting_s(now_s, look.marks)
        gauges = self._told.gauges
        gauges(semconv.METRIC_GOODPUT, [(min(trained_s / total_s, 1.0) if total_s > 0 else 0.0, {})])
        gauges(semconv.METRIC_ROUND, [(look.round, {})])
        gauges(
            semconv.METRIC_RANKS,
            [(count, {semconv.ATTR_STATE: state}) for state, count in look.states.items()],
        )
        age_s = look.oldest_report_s
        gauges(semconv.METRIC_BEAT_AGE, [] if age_s is None else [(age_s, {})])

    def finish(self, now_s: float) -> None:
        """This life is over."""
        if self.round is not None:
            self._trains({}, last=True)
            self.round.gone(now_s)  # an agent that leaves at once does not see its ranks end
            self.round.closes(now_s, self._outcome(self.round, "terminated"))

    # Inside -------------------------------------------------------------------------------------------

    def _trains(self, marks: Mapping[Mark, float], *, last: bool = False) -> None:
        """How far the ranks have come; `last`: they will come no further."""
        if self.round is None or self.before is None:
            return
        took_s = self.round.restarted(self.before, marks, last=last)
        if took_s is not None:
            kind = self.before.fault.kind if self.before.fault else ""
            self._told.measure(semconv.METRIC_RECOVERY, took_s, {semconv.ATTR_KIND: kind})

    def _ended(self, number: int, end: RankEnd, now_s: float) -> None:
        current = self._of(number)
        if current is None or end.kind is None or end.kind is FaultKind.STOPPED_BY_US:
            return
        began_s = self._ranks_began_s.get(end.local_rank)
        since_s = None if began_s is None else began_s + end.ran_s
        sentence = f"rank {end.rank}: {end.detail or end.kind.value}"
        self._faulted(number, end.kind, sentence, end.rank, since_s, now_s)

    def _faulted(
        self,
        number: int,
        kind: FaultKind,
        sentence: str,
        rank: int | None,
        since_s: float | None,
        now_s: float,
    ) -> None:
        current = self._of(number)
        if current is None or current.at.told_s is not None:
            return
        if current.faulted(now_s, kind.value, sentence, rank, since_s):
            took_s = now_s - (current.at.fault_since_s or now_s)
            self._told.measure(semconv.METRIC_DETECTION, took_s, {semconv.ATTR_KIND: kind.value})
            self._told.flush()

    def _gone(self, number: int, marks: Mapping[Mark, float], now_s: float) -> None:
        current = self._of(number)
        if current is None:
            return
        self._trained_s += self._lasting_s(now_s, marks)
        self._trains(marks, last=True)
        current.gone(now_s)
        self._ranks_began_s.clear()

    def _lasting_s(self, now_s: float, marks: Mapping[Mark, float]) -> float:
        """How long the ranks that live now have trained: from their first step, else from their start."""
        current = self.round
        if current is None or current.at.started_s is None or current.at.gone_s is not None:
            return 0.0
        over = current.at.fault_s or current.at.told_s or now_s
        return max(0.0, over - marks.get(Mark.FIRST_STEP, current.at.started_s))

    def _finished(self, outcome: Outcome, now_s: float) -> None:
        current = self.round
        if current is None:
            return
        self._trains({}, last=True)
        current.closes(now_s, "completed" if outcome.success else self._outcome(current, "peer_restart"))
        if self._leading:
            current.decided(now_s, None, outcome.reason)

    def _outcome(self, current: NodeRound, otherwise: str) -> str:
        if current.at.fault_s is not None:
            return "failed"
        if current.at.running_s is not None and current.assignment is None:
            return "standby"
        return otherwise

    def _of(self, number: int) -> NodeRound | None:
        return self.round if self.round is not None and self.round.number == number else None


def _links(old: NodeRound | None, now_round: Round) -> tuple[SpanLink, ...]:
    """From a round's root to the round before, and to the fault that ended it."""
    if old is None or old.number != now_round.number - 1 or not opener_of(now_round.extra):
        return ()
    links = [SpanLink(old.root, {semconv.LINK_KIND: "previous_round"})]
    root = now_round.verdict.root if now_round.verdict else None
    marked = old.fault.node_id if old.fault else None
    # A hang may be found by those who wait only: the node to blame has then made no mark.
    if root is not None and root.node_id is not None and root.kind not in _FOUND_BY_OTHERS:
        marked = root.node_id
    if marked is not None:
        links.append(SpanLink(old.mark_of(marked), {semconv.LINK_KIND: "fault"}))
    return tuple(links)
