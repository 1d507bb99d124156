"""One round as spans of one node. Pure: it is told what happened when, and hands out finished spans.

Moments are seconds of CLOCK_BOOTTIME on this host; `epoch_ns` turns them into nanoseconds since 1970, the same way
for all spans of the agent, so none begins before its cause because a wall clock was put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from nvrx_async.job.records import Assignment, End, Interrupt, Mark, Round
from nvrx_async.job.trace import opener_of, root_of
from nvrx_launcher.tracing_rank_starts import RankStart, RankStarts
from nvrx_telemetry import semconv
from nvrx_telemetry.model import FinishedSpan, SpanLink, Value
from nvrx_telemetry.traceparent import SpanName, derived_span_id, derived_trace_id

NS = 1_000_000_000
FIRST_SLICE_S = 60.0
LONGEST_SLICE_S = 600.0
"""A run that goes on is told of after a minute, then after twice as long each time, up to this."""


@dataclass(frozen=True, slots=True)
class About:
    """Whose spans they are. `infra_rank`: the node's number at its scheduler, if it has one."""

    run_id: str
    attempt: int
    node_id: str
    incarnation: str
    max_restarts: int
    infra_rank: int | None
    epoch_ns: int


@dataclass(slots=True)
class NodeMoments:
    """What was seen of a round so far, each moment once; None for not yet."""

    seen_s: float
    joined_s: float | None = None
    running_s: float | None = None
    released_s: float | None = None
    started_s: float | None = None
    fault_s: float | None = None
    fault_since_s: float | None = None
    told_s: float | None = None
    evidence_s: float | None = None
    stopping_s: float | None = None
    gone_s: float | None = None
    reported_s: float | None = None


@dataclass(slots=True)
class _Fault:
    """A fault, of this node or told by another."""

    kind: str
    sentence: str
    node_id: str


class NodeRound:
    """See the module. `emit` takes finished spans."""

    def __init__(
        self, about: About, now_round: Round, seen_s: float, emit: Callable[[FinishedSpan], None]
    ) -> None:
        self.about = about
        self.number = now_round.number
        self.at = NodeMoments(seen_s)
        self.assignment: Assignment | None = None
        self.membership = "unjoined"
        self.root = trace_root(about, now_round)
        self.opened_here = opener_of(now_round.extra) == about.incarnation
        self.opened_utc = now_round.opened_utc
        self.failures = 0
        self.fault: _Fault | None = None
        self.outcome = ""
        self.slice_from_s: float | None = None
        self._slices = 0
        self._ledger = now_round.ledger
        self._emit = emit
        self._nodes = self._world = 0
        self._restarted_to: str | None = None
        self._starts: RankStarts | None = None
        self._awaited: set[int] = set()
        self._first_began_s: float | None = None
        self._marks: dict[str, SpanName] = {}

    # Names --------------------------------------------------------------------------------------------

    def named(self, name: str, *more: object) -> SpanName:
        """Which span of this node in this round."""
        return named(self.about, self.root, name, *more)

    def fault_mark(self, node_id: str, by: str | None = None) -> SpanName:
        """The mark of a fault on any node of the round. `by`: who tells of it, None for that node itself.

        A node that others told of as lost may come back and mark a fault of its own: these are two spans.
        """
        trace_id, teller = self.root.trace_id, () if by in (None, node_id) else (by,)
        return SpanName(trace_id, derived_span_id(trace_id, node_id, semconv.FAULT, *teller))

    def mark_of(self, node_id: str) -> SpanName:
        """The mark of a node's fault as it is known here: by whom it was told, if it was."""
        return self._marks.get(node_id, self.fault_mark(node_id))

    # The round ----------------------------------------------------------------------------------------

    def opens(self, awaited_since_s: float, links: tuple[SpanLink, ...]) -> None:
        """This node sees the round for the first time. `links` lead from its root to what came before."""
        if self.opened_here:
            at_ns = utc_ns(self.opened_utc) or self._ns(self.at.seen_s)
            about = {semconv.RDZV_RUN_ID: self.about.run_id, semconv.NODE: self.about.node_id}
            attributes = {**self._round(), **about, semconv.ATTEMPT: self.about.attempt}
            self._make(semconv.ROUND_START, self.root, None, at_ns, at_ns, attributes, links=links)
        self._span(
            semconv.CYCLE_START,
            self.at.seen_s,
            self.at.seen_s,
            {**self._round(), semconv.NODE: self.about.node_id, semconv.MEMBERSHIP: self.membership},
            parent=self.root,
        )
        if awaited_since_s < self.at.seen_s:
            self._span(semconv.AWAIT_ROUND, awaited_since_s, self.at.seen_s, self._round())

    def runs(self, now_s: float, assignment: Assignment | None, nodes: int, world_size: int) -> None:
        """The world is sealed and read here; without an assignment this node is a spare."""
        if self.at.running_s is not None:
            return
        self.at.running_s, self.assignment = now_s, assignment
        self._nodes, self._world = nodes, world_size
        self.membership = "active" if assignment else "standby"
        self._span(semconv.RENDEZVOUS, self.at.seen_s, now_s, self._membership())
        if self.at.joined_s is not None:
            self._checked(self.at.joined_s)

    def joined(self, now_s: float) -> None:
        """This node's join, or the report that is one, is in etcd; the answer may come after the world is sealed."""
        if self.at.running_s is None:
            self.at.joined_s = now_s
        elif self.at.joined_s is None:
            self.at.joined_s = now_s
            self._checked(now_s)

    def _checked(self, joined_s: float) -> None:
        above, start_s = self.named(semconv.RENDEZVOUS), min(self.at.seen_s, joined_s)
        self._span(semconv.HEALTH_CHECK, start_s, joined_s, self._membership(), parent=above)

    def _membership(self) -> dict[str, Value]:
        attributes = {**self._round(), semconv.MEMBERSHIP: self.membership}
        if self.assignment is not None:
            attributes[semconv.GROUP_RANK] = self.assignment.seat.group_rank
        return attributes

    def released(self, now_s: float) -> None:
        """The ranks are ordered to start."""
        self.at.released_s = self.at.released_s or now_s

    def prepared(self, now_s: float, resources: Mapping[int, Mapping[str, Value]]) -> None:
        """What the ranks get is ready: attributes of their processes by local rank."""
        self._starts, self._awaited = RankStarts(now_s, resources), set(resources)

    def rank_began(self, now_s: float, local_rank: int) -> None:
        """A rank has a process."""
        self._awaited.discard(local_rank)
        self._first_began_s = self._first_began_s or now_s
        if self._awaited or self.at.started_s is not None or self.at.released_s is None:
            return
        self.at.started_s = self.slice_from_s = now_s
        place = {**self._round(), **self._place(), semconv.NODE: self.about.node_id}
        self._span(semconv.WORKER_LAUNCH, self.at.released_s, now_s, place)
        self._anchors_run(now_s)

    def ranks_are(self, starts: Mapping[int, RankStart]) -> None:
        """How far ranks have come with their start, by local rank."""
        above = self.named(semconv.RUN_START)
        for part in self._starts.news(starts) if self._starts is not None else ():
            attributes = {semconv.RDZV_ROUND: self.number, semconv.LOCAL_RANK: part.local_rank}
            name, times = (
                self.named(part.name, part.local_rank),
                (self._ns(part.start_s), self._ns(part.end_s)),
            )
            self._make(part.name, name, above.span_id, *times, attributes, resource=part.resource)

    def goes_on(self, now_s: float, step: int | None) -> None:
        """The ranks train: a part of the run is told from time to time."""
        length_s = min(FIRST_SLICE_S * 2**self._slices, LONGEST_SLICE_S)
        if self.slice_from_s is None or now_s - self.slice_from_s < length_s:
            return
        attributes = self._round() | ({} if step is None else {semconv.STEP: step})
        start_s, self.slice_from_s = self.slice_from_s, now_s
        self._slices += 1
        name, above = self.named(semconv.RUN_SLICE, self._slices), self.named(semconv.RUN_START)
        self._make(semconv.RUN_SLICE, name, above.span_id, self._ns(start_s), self._ns(now_s), attributes)

    def _anchors_run(self, now_s: float) -> None:
        self._span(semconv.RUN_START, now_s, now_s, {**self._round(), **self._place()})

    # Its end ------------------------------------------------------------------------------------------

    def faulted(
        self, now_s: float, kind: str, sentence: str, rank: int | None, since_s: float | None
    ) -> bool:
        """This node sees a fault of its own; True for the first."""
        self.failures += 1
        if self.at.fault_s is not None:
            return False
        self.at.fault_s = now_s
        self.at.fault_since_s = now_s if since_s is None else min(since_s, now_s)
        self.fault = _Fault(kind, sentence, self.about.node_id)
        attributes: dict[str, Value] = {
            **self._round(),
            **self._place(),
            semconv.NODE: self.about.node_id,
            semconv.CYCLE_FAILURES: self.failures,
            semconv.FAULT_KIND: kind,
            semconv.FAULT_SENTENCE: sentence,
        } | ({} if rank is None else {semconv.FAULT_RANK: rank})
        mark = self.fault_mark(self.about.node_id)
        above = self.named(semconv.CYCLE_START).span_id
        self._make(semconv.FAULT, mark, above, self._ns(now_s), self._ns(now_s), attributes, error=sentence)
        found = {**self._round(), semconv.FAULT_KIND: kind}
        self._span(semconv.DETECTION, self.at.fault_since_s, now_s, found)
        return True

    def told(self, now_s: float, interrupt: Interrupt) -> None:
        """This node knows that the round is over, whoever said so."""
        if self.at.told_s is not None:
            return
        self.at.told_s = now_s
        if interrupt.by == self.about.node_id:
            if self.fault is None:  # a node that says nothing any more: this one says it
                self._lost(now_s, interrupt)
            return
        self.fault = self.fault or _Fault(interrupt.kind.value, interrupt.reason, interrupt.node_id)
        self._marks[interrupt.node_id] = self.fault_mark(interrupt.node_id, interrupt.by)
        start_s = self.notified_since_s(interrupt, now_s)
        self._span(
            semconv.NOTIFICATION, start_s, now_s, {**self._round(), semconv.FAULT_KIND: interrupt.kind.value}
        )

    def _lost(self, now_s: float, interrupt: Interrupt) -> None:
        kind, reason, node_id = interrupt.kind.value, interrupt.reason, interrupt.node_id
        self.fault = _Fault(kind, reason, node_id)
        about: dict[str, Value] = {semconv.NODE: self.about.node_id, semconv.CYCLE_FAILURES: self.failures}
        attributes = {**self._round(), **self._place(), **about, **self._of_fault()}
        mark, at_ns = self.fault_mark(node_id, self.about.node_id), self._ns(now_s)
        self._marks[node_id] = mark
        above = self.named(semconv.CYCLE_START).span_id
        self._make(semconv.FAULT, mark, above, at_ns, at_ns, attributes, error=reason)

    def notified_since_s(self, interrupt: Interrupt, now_s: float) -> float:
        """When another node wrote the interrupt, as far as two clocks agree."""
        at_ns = utc_ns(interrupt.at_utc)
        return now_s if at_ns is None else min(now_s, (at_ns - self.about.epoch_ns) / NS)

    def explaining(self, now_s: float) -> None:
        """What hung ranks do is being noted."""
        self.at.evidence_s = self.at.evidence_s or now_s

    def stopping(self, now_s: float) -> None:
        """The ranks are told to stop."""
        if self.at.stopping_s is not None or self.at.released_s is None:
            return
        self.at.stopping_s = now_s
        if self.at.evidence_s is not None:
            self._span(semconv.EVIDENCE, self.at.evidence_s, now_s, self._round())

    def gone(self, now_s: float) -> None:
        """No rank lives here."""
        at = self.at
        if at.gone_s is not None:
            return
        at.gone_s, self.slice_from_s = now_s, None
        if at.released_s is None:
            return
        place = {**self._round(), **self._place()}
        until_s = _first(at.fault_s, at.told_s, at.stopping_s) or now_s
        if at.started_s is not None:
            above = self.named(semconv.RUN_START)
            self._span(semconv.RUN, at.started_s, max(until_s, at.started_s), place, parent=above)
        if at.stopping_s is not None or at.fault_s is not None:
            start_s = _first(at.stopping_s, at.fault_s) or now_s
            self._span(semconv.TEARDOWN, start_s, now_s, {**place, semconv.NODE: self.about.node_id})

    def reported(self, now_s: float) -> None:
        """The report on this node's ranks is in etcd."""
        if self.at.gone_s is not None and self.at.reported_s is None:
            self.at.reported_s = now_s
            self._span(semconv.REPORT, self.at.gone_s, now_s, self._round())

    def closes(self, now_s: float, outcome: str) -> None:
        """What this node was in the round is over."""
        if self.outcome:
            return
        self.outcome = outcome
        if self.at.started_s is None and self._first_began_s is not None:
            # Not all ranks came up: those that did may have told of themselves.
            self._anchors_run(self._first_began_s)
        attributes: dict[str, Value] = {
            **self._round(),
            semconv.NODE: self.about.node_id,
            semconv.MEMBERSHIP: self.membership,
            semconv.CYCLE_OUTCOME: outcome,
        }
        if self.assignment is not None:
            left = max(self.about.max_restarts - self._ledger.restarts, 0)
            attributes |= self._place() | {
                semconv.MAX_RESTARTS: self.about.max_restarts,
                semconv.REMAINING_RESTARTS: left,
                semconv.RDZV_RUN_ID: self.about.run_id,
                semconv.WORLD_SIZE: self._world,
            }
            if self.about.infra_rank is not None:
                attributes[semconv.INFRA_RANK] = self.about.infra_rank
        if outcome == "failed":
            attributes |= {semconv.CYCLE_FAILURES: self.failures, semconv.CYCLE_STATE: "FAILED"}
            attributes |= self._of_fault()
        error = self.fault.sentence if self.fault and outcome == "failed" else None
        self._span(semconv.CYCLE, self.at.seen_s, now_s, attributes, error=error)

    def decided(self, now_s: float, end: End | None, reason: str) -> None:
        """This agent led when the round ended, and tells of it for all nodes."""
        attributes = {**self._round(), semconv.WORLD_SIZE: self._world, semconv.REASON: reason}
        if end is not None:
            attributes |= verdict_attributes(end)
        start_s = self.at.told_s if self.at.told_s is not None else self.at.fault_s
        if start_s is not None:
            self._span(semconv.DECISION, start_s, now_s, attributes)
        opened_ns = utc_ns(self.opened_utc) or self._ns(self.at.seen_s)
        name = self.named(semconv.ROUND)
        self._make(semconv.ROUND, name, self.root.span_id, opened_ns, self._ns(now_s), attributes)

    # The restart that led here ------------------------------------------------------------------------

    def restarted(self, ended: NodeRound, marks: Mapping[Mark, float], *, last: bool) -> float | None:
        """The restart since the round before, once this node's ranks train; `last`: no more will be known.

        Returns how long it took, once.
        """
        if self._restarted_to is not None or self.at.started_s is None:
            return None
        steps = [*_ending(ended.at), *_starting(self.at, marks)]
        complete = Mark.FIRST_STEP in marks
        start_s = _first(ended.at.fault_since_s, ended.at.fault_s, ended.at.told_s)
        if start_s is None or not (complete or last):
            return None
        self._restarted_to = "first step" if complete else "started"
        end_s = max([start_s, *(at_s for _, at_s in steps if at_s is not None)])
        attributes = {**self._round(), **self._place(), **ended._of_fault()}
        fault = ended.fault.node_id if ended.fault else self.about.node_id
        links = (SpanLink(ended.mark_of(fault), {semconv.LINK_KIND: "fault"}),)
        above = self._span(semconv.RESTART, start_s, end_s, attributes, links=links)
        passed_s = start_s
        for name, at_s in steps:
            if at_s is not None:
                until_s = max(passed_s, at_s)
                self._span(name, passed_s, until_s, self._round(), parent=above)
                passed_s = until_s
        return end_s - start_s

    # Small steps --------------------------------------------------------------------------------------

    def _round(self) -> dict[str, Value]:
        return {semconv.RDZV_ROUND: self.number, semconv.PROFILING_CYCLE: self.number}

    def _place(self) -> dict[str, Value]:
        if self.assignment is None:
            return {}
        return {
            semconv.GROUP_RANK: self.assignment.seat.group_rank,
            semconv.GROUP_WORLD_SIZE: self.assignment.group_world_size,
        }

    def _of_fault(self) -> dict[str, Value]:
        if self.fault is None:
            return {}
        return {
            semconv.FAULT_KIND: self.fault.kind,
            semconv.FAULT_SENTENCE: self.fault.sentence,
            semconv.FAULT_NODE: self.fault.node_id,
        }

    def _span(
        self,
        name: str,
        start_s: float,
        end_s: float,
        attributes: Mapping[str, Value],
        *,
        parent: SpanName | None = None,
        links: tuple[SpanLink, ...] = (),
        error: str | None = None,
    ) -> SpanName:
        """A span that this node has once in a round; below its anchor unless told otherwise."""
        me, above = self.named(name), parent or self.named(semconv.CYCLE_START)
        times = self._ns(start_s), self._ns(max(start_s, end_s))
        self._make(name, me, above.span_id, *times, attributes, links=links, error=error)
        return me

    def _make(
        self,
        name: str,
        me: SpanName,
        parent_id: int | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Value],
        *,
        links: tuple[SpanLink, ...] = (),
        error: str | None = None,
        resource: Mapping[str, Value] | None = None,
    ) -> None:
        times = start_ns, max(start_ns, end_ns)
        self._emit(
            FinishedSpan(name, me.trace_id, me.span_id, parent_id, *times, attributes, links, error, resource)
        )

    def _ns(self, moment_s: float) -> int:
        return self.about.epoch_ns + round(moment_s * NS)


def verdict_attributes(end: End) -> dict[str, Value]:
    """What a verdict says of a fault and of what comes next."""
    attributes: dict[str, Value] = {
        semconv.FAULT_KIND: end.root.kind.value,
        semconv.FAULT_SENTENCE: end.root.sentence,
        semconv.LEVEL: end.level.value,
    }
    return attributes | ({semconv.FAULT_NODE: end.root.node_id} if end.root.node_id else {})


def utc_ns(text: str) -> int | None:
    """Nanoseconds since 1970 of a record's moment, None where it names none."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000) * 1_000_000
    except ValueError:
        return None


def _ending(at: NodeMoments) -> list[tuple[str, float | None]]:
    told = _first(at.fault_s, at.told_s)
    return [
        (semconv.RESTART_TOLD, told),
        (semconv.RESTART_STOPPED, at.stopping_s),
        (semconv.RESTART_REAPED, at.gone_s),
        (semconv.RESTART_REPORTED, at.reported_s),
    ]


def _starting(at: NodeMoments, marks: Mapping[Mark, float]) -> list[tuple[str, float | None]]:
    return [
        (semconv.RESTART_ENDED, at.seen_s),
        (semconv.RESTART_SEALED, at.running_s),
        (semconv.RESTART_RELEASED, at.released_s),
        (semconv.RESTART_STARTED, at.started_s),
        (semconv.RESTART_CONNECTED, marks.get(Mark.HELLO)),
        (semconv.RESTART_FIRST_STEP, marks.get(Mark.FIRST_STEP)),
    ]


def _first(*moments: float | None) -> float | None:
    return next((moment for moment in moments if moment is not None), None)


def trace_root(about: About, now_round: Round) -> SpanName:
    """The root of a round's trace.

    A round that an agent of another version opened does not say it: all agents of this one still mean the same.
    """
    told = root_of(now_round)
    if told is not None:
        return told
    unsaid = (about.run_id, about.attempt, now_round.number, now_round.opened_utc)
    return SpanName(derived_trace_id("trace", *unsaid), derived_span_id("root", *unsaid))


def named(about: About, root: SpanName, name: str, *more: object) -> SpanName:
    """Which span of this node in a round."""
    return SpanName(root.trace_id, derived_span_id(root.trace_id, about.incarnation, name, *more))
