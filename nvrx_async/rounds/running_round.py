"""A round that runs: watched over until it is finished, interrupted, or asked to stop. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nvrx_async.etcd.types import Scope
from nvrx_async.job.records import FaultKind, Interrupt, JobSpec, Seat, Stop, StopPhase, StopVote, Struck
from nvrx_async.rounds.closing import Case
from nvrx_async.rounds.conclusions import Conclusions
from nvrx_async.rounds.dispatch import Dispatch
from nvrx_async.rounds.fencing import fenced_at, given_up_at, is_present
from nvrx_async.rounds.forming import free_nodes
from nvrx_async.rounds.growth import growth
from nvrx_async.rounds.seal import Wait
from nvrx_async.rounds.sentences import seat_lost
from nvrx_async.rounds.stop_state import next_stop, within_s
from nvrx_async.rounds.world import finished


class RunningRound:
    """What the coordinator does about it.

    `node_id`: its own, for what it writes. `agree_s`: how long ranks may take to end at an agreed step, after that
    they are stopped by SIGTERM.
    """

    def __init__(
        self, node_id: str, spec: JobSpec, dispatch: Dispatch, conclusions: Conclusions, agree_s: float
    ) -> None:
        self._node_id = node_id
        self._spec = spec
        self._dispatch = dispatch
        self._conclusions = conclusions
        self._agree_s = agree_s
        self._stop_since_s: dict[int, float] = {}
        self._since_s: dict[int, float] = {}

    def decide(self, case: Case) -> str:
        """Notice its end, or end it where there is a reason to."""
        keys, number, seats = case.office.keys, case.round.number, case.world.seats
        interrupt = case.office.mirror.record(Interrupt, keys.interrupt(number))
        if interrupt is not None:
            return self._conclusions.close(case, interrupt)
        done = case.world.spoken_for(finished(case.office.mirror, keys, number))
        lost = self._lost(case, [seat for seat in seats if seat.node_id not in done])
        if lost is not None:
            return self._interrupt_lost(case, lost)
        if len(done) == len(seats):
            return self._conclusions.all_done(case, done)
        votes = case.office.mirror.records(StopVote, Scope(keys.stop_vote(number, ""), prefix=True))
        stop = next_stop(case.round, case.office.mirror.record(Stop, keys.stop(number)), votes, seats, done)
        if stop is not None:
            self._dispatch.commit("stop", case.office.stop(case.round, stop))
            return f"round {number} is to stop: {stop.phase.value}, at step {stop.step}"
        if case.stop is not None:
            return self._end_for(case, case.stop)
        return self._strike(case, done) or self._grow(case)

    def _lost(self, case: Case, expected: Sequence[Seat]) -> Seat | None:
        """The first member that is not waited for any more."""
        since_s, at_s = case.missing.since_s, case.now.s
        for seat in expected:
            if not is_present(seat, case.nodes):
                until_s = given_up_at(seat, case.nodes, since_s[seat.node_id], case.judge, self._spec)
                if at_s >= until_s:
                    return seat
                self._dispatch.wake(until_s)
        return None

    def _strike(self, case: Case, done: Collection[str]) -> str | None:
        """A spare or a done member that is gone for good is asked for no promises: its silence would end them all."""
        if self._spec.outage_limit_s <= 0:
            return None
        running = {seat.node_id for seat in case.world.seats} - set(done)
        for one in case.world.named:
            if one.node_id in running or one.incarnation in case.world.struck or is_present(one, case.nodes):
                continue
            since_s = case.missing.since_s[one.node_id]
            at_s, why = fenced_at(one, case.nodes, since_s, case.judge, self._spec)
            if case.now.s >= at_s:
                struck = Struck(one.node_id, one.incarnation, why)
                self._dispatch.commit("strike", case.office.strike(struck, case.round))
                return f"{one.node_id} need not be asked any more: {why}"
            self._dispatch.wake(at_s)
        return None

    def _grow(self, case: Case) -> str:
        """End the round for nodes that wait, where the policy lets them in."""
        number, now_s, keys = case.round.number, case.now.s, case.office.keys
        self._since_s = {number: self._since_s.get(number, now_s)}
        free = free_nodes(case)
        allowed = case.office.mirror.get(keys.grow(number)) is not None
        step = growth(now_s, self._since_s[number], case.world.seats, free, self._spec, allowed=allowed)
        if isinstance(step, Stop):
            self._dispatch.commit("stop", case.office.stop(case.round, step))
            return f"round {number} is to stop: {step.reason}"
        if step is not None:
            self._dispatch.wait(Wait(step.sentence, step.at_s), step.sentence)
        return f"round {number} runs"

    def _end_for(self, case: Case, stop: Stop) -> str:
        """End the round by an interrupt where its ranks do not agree on a step, or take too long to come to it."""
        number, now_s = case.round.number, case.now.s
        self._stop_since_s = {number: self._stop_since_s.get(number, now_s)}
        due_s = self._stop_since_s[number] + within_s(stop, self._agree_s)
        if stop.phase is not StopPhase.REFUSED and now_s < due_s:
            self._dispatch.wake(due_s)
            return f"round {number} stops at one step: {stop.reason}"
        interrupt = Interrupt(self._node_id, FaultKind.ASKED, "", stop.reason, case.now.utc)
        self._dispatch.commit("interrupt", case.office.interrupt_asked(interrupt, number))
        return f"round {number} is over: {stop.reason}"

    def _interrupt_lost(self, case: Case, seat: Seat) -> str:
        reason = seat_lost(seat)
        interrupt = Interrupt(self._node_id, FaultKind.NODE_LOST, seat.node_id, reason, case.now.utc)
        self._dispatch.commit("interrupt", case.office.interrupt(seat.node_id, interrupt, case.round.number))
        return reason
