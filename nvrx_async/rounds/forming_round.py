"""A round that forms: who has joined it, and whether its world can be sealed. Pure."""

from __future__ import annotations

from nvrx_async.job.records import JobSpec
from nvrx_async.rounds.closing import Case, asked_for
from nvrx_async.rounds.conclusions import Conclusions
from nvrx_async.rounds.dispatch import Dispatch
from nvrx_async.rounds.forming import forming_of
from nvrx_async.rounds.seal import Sealed, Wait, seal
from nvrx_async.rounds.seating import keeps_seats
from nvrx_async.rounds.world import seal_of

NEVER_READY = 3
REQUEUE = 75


class FormingRound:
    """What the coordinator does about it. `incarnation`: its own, of which the tokens of its seals are made."""

    def __init__(self, incarnation: str, spec: JobSpec, dispatch: Dispatch, conclusions: Conclusions) -> None:
        self._incarnation = incarnation
        self._spec = spec
        self._dispatch = dispatch
        self._conclusions = conclusions
        self._since_s: dict[int, float] = {}
        self._seals = 0

    def decide(self, case: Case) -> str:
        """Seal it as soon as its world is clear; give up where that took too long."""
        number, now_s = case.round.number, case.now.s
        self._since_s = {number: self._since_s.get(number, now_s)}
        forming = forming_of(case, number, self._since_s[number])
        if case.finishes is not None:
            return self._conclusions.stop(case, forming, asked_for(case.finishes))
        result = seal(now_s, forming, case.judge, self._spec)
        if isinstance(result, Sealed):
            return self._seal(case, result)
        if result.expired:
            return self._give_up(case, result)
        # Before anybody joined there is nothing to say: agents join within moments.
        self._dispatch.wait(
            result, f"round {number}: {result.reason}" if forming.joins else self._dispatch.told
        )
        return result.reason

    def _seal(self, case: Case, sealed: Sealed) -> str:
        there, wanted = len(sealed.spares), self._spec.policy.spares
        if there < wanted:
            self._dispatch.tell(
                f"for {wanted - there} more to wait as spare; there are {there} of --spares {wanted}", None
            )
        seal = seal_of(case.round)
        # After an outage that took its lease, the coordinator seals anew: its session is older than that seal.
        keeps = seal is not None and keeps_seats(case.world, sealed, case.round.number, seal[0])
        if seal is not None and keeps and case.judge.older_than_seal:
            self._dispatch.commit("seal", case.office.run_again(case.round, sealed, seal, case.now.utc))
            return f"running round {case.round.number} as the one before: {sealed.reason}"
        self._conclusions.give_up_on(case)
        self._seals += 1
        token = f"{self._incarnation}-{self._seals}"
        self._dispatch.commit("seal", *case.office.seal(case.round, sealed, token, case.now.utc))
        return f"sealing round {case.round.number}: {sealed.reason}"

    def _give_up(self, case: Case, wait: Wait) -> str:
        never = case.round.number == 0
        reason = f"in {self._spec.join_timeout_s:g} s (--join-timeout) {wait.reason}"
        reason = f"never started: {reason}" if never else f"too few nodes to go on: {reason}"
        return self._conclusions.fail(case, NEVER_READY if never else REQUEUE, reason)
