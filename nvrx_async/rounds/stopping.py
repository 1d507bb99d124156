"""A stop that all ranks of the job agree on, so that all save the same step: this agent's part. Pure.

Two phases. *Hold*: whoever wants to stop says so, and the coordinator tells all in `round`. Every agent then
holds its ranks, so that none passes another `should_stop` without the answer, and votes with the highest step
that one of them has asked about so far. *Commit*: the coordinator answers with the highest vote + 1. No rank has
passed that step, and none waits at a step in which another still needs it: a rank below goes on, a rank at it
stops. Ranks wait for a bounded time; one node whose ranks do not ask refuses for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_async.etcd.types import Txn
from nvrx_async.job.records import Ending, Purpose, Round, Stop, StopPhase
from nvrx_async.rounds.effects import Effect, HoldRanks, Notify, StopAtStep, Waiting
from nvrx_async.rounds.events import GrowthAllowed, RanksHeld, StopWanted
from nvrx_async.rounds.registration import Registration
from nvrx_async.rounds.stop_state import ENDING, WITHIN, stop_in


@dataclass(frozen=True, slots=True)
class Step:
    """What an agent does next for a stop. `waits`: the stop is under way or agreed, its ranks end by themselves."""

    waits: bool
    effects: tuple[Effect, ...] = ()
    tag: str = ""
    txn: Txn | None = None


NOTHING = Step(waits=False)
WAIT = Step(waits=True)


def wish_of(wanted: StopWanted | None, registered: Registration) -> Stop | None:
    """The stop that ends the job, as the record that says so."""
    if wanted is None:
        return None
    told = {"exit_code": wanted.exit_code, WITHIN: wanted.within_s, ENDING: Ending.TIME_LIMIT.value}
    return Stop(registered.node.node_id, wanted.reason, purpose=Purpose.FINISH, extra=told)


class Stopping:
    """What this agent has done for the stop of one round."""

    def __init__(self) -> None:
        self._may_grow = -1
        self._forget(-1)

    def _forget(self, number: int) -> None:
        """A new round begins with nothing done."""
        self._round = number
        self._holding = False
        self._held: RanksHeld | None = None
        self._asked = False
        self._told_growth = False
        self._voted = False
        self._agreed: bool | None = None

    def held(self, event: RanksHeld) -> None:
        """The ranks are held."""
        if event.round == self._round:
            self._held = event

    def allowed(self, event: GrowthAllowed) -> None:
        """A rank says that the job may grow."""
        self._may_grow = max(self._may_grow, event.round)

    def committed(self, tag: str, number: int) -> None:
        """The wish (`stop`), the vote (`vote`) or the word of a rank (`grow`) was committed."""
        if number == self._round:
            self._told_growth = self._told_growth or tag == "grow"
            self._asked, self._voted = self._asked or tag == "stop", self._voted or tag == "vote"

    def next(self, registered: Registration, number: int, wanted: Stop | None) -> Step:
        """What to do now. `wanted`: the stop that this agent wants, if it does."""
        if self._round != number:
            self._forget(number)
        keys, mirror = registered.keys, registered.mirror
        now_round = mirror.record(Round, keys.round)
        stop = stop_in(now_round.extra) if now_round is not None and now_round.number == number else None
        if mirror.get(keys.interrupt(number)) is not None:
            return NOTHING
        if stop is None and wanted is None:
            told = self._told_growth or self._may_grow != number
            return NOTHING if told else Step(waits=False, tag="grow", txn=registered.allow_growth(number))
        if self._agreed is not None:
            return WAIT if self._agreed else NOTHING
        if stop is not None and stop.phase is not StopPhase.ASKED:
            return self._answer(stop, number)
        if not self._holding:
            self._holding = True
            return Step(waits=True, effects=(HoldRanks(number),))
        if self._held is None or self._voted or (stop is None and self._asked):
            return WAIT
        if stop is not None or wanted is None:
            return Step(waits=True, tag="vote", txn=registered.vote(number, self._held.step))
        if self._held.step is None:  # ranks that do not ask cannot be told
            self._agreed = False
            return Step(waits=False, effects=(StopAtStep(number, None),))
        return Step(waits=True, tag="stop", txn=registered.stop(number, wanted))

    def _answer(self, stop: Stop, number: int) -> Step:
        self._agreed = stop.phase is StopPhase.AGREED
        step = stop.step if self._agreed else None
        told = Notify(Waiting(f"all ranks of the job stop at step {step}; {stop.reason}"))
        return Step(self._agreed, (StopAtStep(number, step), *((told,) if self._agreed else ())))
