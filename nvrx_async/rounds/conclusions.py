"""What the coordinator decides when a round is over: the next one, or the outcome of the attempt. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from nvrx_async.job.records import (
    End,
    Exclusion,
    Interrupt,
    JobSpec,
    Level,
    Phase,
    Purpose,
    Root,
    Round,
    StopPhase,
)
from nvrx_async.job.trace import opened
from nvrx_async.rounds.closing import Case, asked_for, asked_root, end_of, outcome_of, root_of, verdict_on
from nvrx_async.rounds.dispatch import Dispatch
from nvrx_async.rounds.exclusions import BY_POLICY
from nvrx_async.rounds.fencing import is_present
from nvrx_async.rounds.forming import forming_of, free_nodes
from nvrx_async.rounds.ladder import Verdict
from nvrx_async.rounds.limits import with_agreed_limits
from nvrx_async.rounds.office import runs_again
from nvrx_async.rounds.policy import came_to_the_end
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.seal import Forming, Sealed, seal, unclear
from nvrx_async.rounds.seating import keeps_seats
from nvrx_async.rounds.world import finished, reports, seal_of

FAILED = 1


class Conclusions:
    """See the module. `incarnation` and `launch_id` are this agent's, for what the records say."""

    def __init__(
        self, spec: JobSpec, book: Book, dispatch: Dispatch, *, incarnation: str, launch_id: str | None
    ) -> None:
        self._incarnation = incarnation
        self._launch_id = launch_id
        self._spec = spec
        self._book = book
        self._dispatch = dispatch

    def all_done(self, case: Case, done: Collection[str]) -> str:
        """All ranks exited with 0: they finished, or they ended at the step that was agreed on."""
        stop, told = case.stop, finished(case.office.mirror, case.office.keys, case.round.number)
        at_the_end = all(came_to_the_end(told[node_id].extra) for node_id in done)
        if stop is None or stop.phase is not StopPhase.AGREED or at_the_end:
            return self._succeed(case)
        verdict = asked_for(stop, case.round.ledger)
        end = end_of(case, asked_root(stop.reason), verdict)
        if stop.purpose is Purpose.FINISH:
            return self.fail(case, verdict.exit_code or FAILED, stop.reason, end)
        return self._restart(case, end, verdict)

    def close(self, case: Case, interrupt: Interrupt) -> str:
        """Judge an interrupted round once every member has reported or is lost."""
        keys, number, world = case.office.keys, case.round.number, case.world
        told = reports(case.office.mirror, keys, number)
        silent = list(itertools.islice(world.silent(told, case.nodes), 8))
        if silent:
            return f"round {number} is over; {', '.join(silent)} still to report"
        root = root_of(case, interrupt, told, finished(case.office.mirror, keys, number))
        verdict = verdict_on(case, root, told, self._spec, self._substitutes(case, root))
        end = end_of(case, root, verdict)
        if verdict.level in (Level.STOP, Level.REQUEUE):
            return self.stop(case, forming_of(case, number + 1, case.now.s), verdict, end)
        return self._restart(case, end, verdict)

    def _substitutes(self, case: Case, root: Root) -> tuple[str, ...]:
        """Who waits and could take the seat of the node that is to blame, or lost."""
        seat = next((seat for seat in case.world.seats if seat.node_id == root.node_id), None)
        free = free_nodes(case)
        return tuple(name for name in free if seat is not None and case.nodes[name].slots == seat.slots)

    def _restart(self, case: Case, end: End, verdict: Verdict) -> str:
        told = reports(case.office.mirror, case.office.keys, end.number)
        stands = seal_of(case.round)
        keys = case.office.keys
        trace = opened(keys.run_id, keys.attempt, end.number + 1, case.now.utc, self._incarnation)
        following = Round(
            number=end.number + 1,
            phase=Phase.FORMING,
            opened_utc=case.now.utc,
            previous_token=case.round.token,
            sealed_in=stands[0] if stands is not None else -1,
            ledger=verdict.ledger,
            why=end.root.sentence,
            extra={**with_agreed_limits(case.round.extra, told.values()), **trace},
        )
        barred = None
        if verdict.replaces is not None:
            barred = Exclusion(verdict.replaces, end.root.sentence, BY_POLICY, case.now.utc)
        else:
            following = self._at_once(case, following)
        absent = case.world.absent(case.nodes)
        self._dispatch.commit("end", case.office.next_round(case.round, end, following, absent, barred))
        return f"ending round {end.number}: {end.root.sentence}; {end.reason}"

    def _at_once(self, case: Case, following: Round) -> Round:
        """The next round as it runs where all have joined it and nobody moves; else it has to form."""
        forming = forming_of(case, following.number, case.now.s)
        sealed, stands = seal(case.now.s, forming, case.judge, self._spec), seal_of(following)
        if stands is None or not isinstance(sealed, Sealed) or not case.judge.older_than_seal:
            return following
        if not keeps_seats(case.world, sealed, following.number, stands[0]):
            return following
        return runs_again(following, sealed, stands, case.now.utc)

    def stop(self, case: Case, forming: Forming, verdict: Verdict, end: End | None = None) -> str:
        """Like a seal, an outcome waits until nothing of the last world can live."""
        wait = unclear(case.now.s, forming.previous, forming, case.judge, self._spec)
        if wait is not None:
            self._dispatch.wait(wait, f"round {forming.number - 1} is over; {wait.reason}")
            return wait.reason
        return self.fail(case, verdict.exit_code or FAILED, verdict.reason, end)

    def fail(self, case: Case, exit_code: int, reason: str, end: End | None = None) -> str:
        """Write the outcome of an attempt that failed, with the end of its last round."""
        outcome = outcome_of(case, exit_code, reason, self._launch_id, end)
        absent = case.world.absent(case.nodes)
        self.give_up_on(case)
        self._dispatch.commit("outcome", *case.office.failure(case.round, outcome, end, absent))
        return reason

    def _succeed(self, case: Case) -> str:
        outcome = outcome_of(case, 0, "all ranks finished", self._launch_id, None)
        self._dispatch.commit("outcome", case.office.success(case.round, outcome))
        return outcome.reason

    def give_up_on(self, case: Case) -> None:
        """Members taken for dead get no promise of this agent any more: what it commits may take effect late."""
        number = case.round.number - (1 if case.round.phase is Phase.FORMING else 0)
        absent = [seat.incarnation for seat in case.world.seats if not is_present(seat, case.nodes)]
        self._book.give_up(number, frozenset(absent))
