"""The coordinator machine: what the elected agent decides for the job.

It seals worlds, notices lost members, judges why a round ended, opens the next one or writes the outcome.
What it writes stands in `office`, what it reads of the last world in `world`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nvrx_async.etcd.types import Scope
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    Current,
    JobSpec,
    Node,
    Phase,
    Round,
)
from nvrx_async.rounds import commands
from nvrx_async.rounds.closing import Case
from nvrx_async.rounds.conclusions import Conclusions
from nvrx_async.rounds.dispatch import Dispatch
from nvrx_async.rounds.effects import Campaign, Decision
from nvrx_async.rounds.events import Committed, Deposed, Elected, Event, LeaseGranted, Now, Refused
from nvrx_async.rounds.exclusions import exclusions
from nvrx_async.rounds.fencing import Judge
from nvrx_async.rounds.forming_round import FormingRound
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.missing import Missing
from nvrx_async.rounds.office import Office
from nvrx_async.rounds.own_word import Speaker, recorded_agent_lives
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.running_round import RunningRound
from nvrx_async.rounds.world import World, last_world, registered_nodes, seal_of

IDLE = Decision((), None, "another agent leads")
"""What all agents but one decide, at every event."""
AGREE_S = 15.0
"""How long ranks may take to end at an agreed step, unless the agent says otherwise."""


class Coordinator:
    """See the module. Idle unless elected; one object for one life of the agent.

    `agree_s`: how long ranks may take to end at an agreed step, after that they are stopped by SIGTERM.
    """

    def __init__(
        self,
        me: Identity,
        spec: JobSpec,
        mirror: Mirror,
        book: Book | None = None,
        *,
        agree_s: float = AGREE_S,
    ) -> None:
        self._me = me
        self._book = book or Book()
        self._spec = spec
        self._mirror = mirror
        self._dispatch = Dispatch()
        conclusions = Conclusions(
            spec, self._book, self._dispatch, incarnation=me.incarnation, launch_id=me.launch_id
        )
        self._forming = FormingRound(me.incarnation, spec, self._dispatch, conclusions)
        self._running = RunningRound(me.node_id, spec, self._dispatch, conclusions, agree_s)
        self._office: Office | None = None
        self._scopes_for: tuple[Office | None, str | None, int] | None = None
        self._scopes: frozenset[Scope] = frozenset()
        self._turn = 0
        self._resigned_to: str | None = None
        self._world_for: tuple[tuple[int, str] | None, int, int] = (None, 0, 0)
        self._world = World()
        self._missing = Missing()
        self._missing_for: tuple[object, ...] = ()

    # What must be known -------------------------------------------------------------------------------

    def scopes(self) -> frozenset[Scope]:
        """All nodes, and the rounds that decisions are about: O(nodes), at one agent."""
        office = self._office
        round_at = self._mirror.revision(office.keys.round) if office else 0
        now_for = (office, self._resigned_to, round_at)
        if now_for != self._scopes_for:
            self._scopes_for, self._scopes = now_for, self._find_scopes(office)
        return self._scopes

    def _find_scopes(self, office: Office | None) -> frozenset[Scope]:
        again = {Scope(self._resigned_to)} if self._resigned_to is not None else set()
        if office is None:
            return frozenset(again)
        keys = office.keys
        wanted = again | {Scope(current(keys.run_id)), Scope(keys.outcome), Scope(keys.round), keys.nodes}
        wanted |= {keys.controls, keys.exclusions}
        now_round = self._mirror.record(Round, keys.round)
        if now_round is not None:
            # The next round's scope is opened before it begins: members join it with their reports.
            other = now_round.number - 1 if now_round.phase is Phase.FORMING else now_round.number + 1
            wanted |= {keys.interrupts, keys.round_scope(now_round.number)}
            if other >= 0:
                wanted |= {keys.round_scope(other)}
            seal = seal_of(now_round)
            if seal is not None:
                wanted |= {keys.worlds(*seal), keys.all_struck(seal[0])}
        return frozenset(wanted)

    # What is known ------------------------------------------------------------------------------------

    def observe(self, event: Event, now: Now) -> None:
        """Note an event; late news of a candidacy that went with an earlier lease changes nothing."""
        del now
        match event:
            case Elected(key=key, create_revision=at) if (
                self._office is None or at > self._office.create_revision
            ):
                self._office = Office(AttemptKeys.holding(key), key, at, self._mirror)
                self._missing, self._missing_for = Missing(), ()
            case Deposed(key=key) if self._office is not None and self._office.key == key:
                self._office = None  # a commit under way still is
            case LeaseGranted(lease=lease):
                self._me, self._resigned_to = replace(self._me, lease=lease), None
            case Committed(tag=tag) | Refused(tag=tag) if tag == self._dispatch.in_flight:
                self._dispatch.in_flight = None
            case _:
                pass

    def _last_world(self, keys: AttemptKeys, now_round: Round) -> World:
        """The last world, put together anew only when one of its shards changed, or somebody was struck."""
        seal, changed_at = seal_of(now_round), self._mirror.changed_at
        now_for = (
            seal,
            changed_at(keys.worlds(*seal)) if seal is not None else 0,
            changed_at(keys.all_struck(seal[0])) if seal is not None else 0,
        )
        if now_for != self._world_for:
            self._world_for, self._world = now_for, last_world(self._mirror, keys, now_round)
        return self._world

    def _note_missing(self, now: Now, nodes: dict[str, Node], world: World, keys: AttemptKeys) -> None:
        """Since when each recorded agent is not seen, looked at only when something changed."""
        now_for = (self._mirror.changed_at(keys.nodes), *self._world_for)
        if now_for != self._missing_for:
            self._missing_for = now_for
            self._missing.note(now, nodes, world, self._mirror, keys)

    # What to do ---------------------------------------------------------------------------------------

    def decide(self, now: Now) -> Decision:
        """What to do; see `Machine`."""
        if self._office is None and self._resigned_to is None:
            return IDLE
        self._dispatch.begin()
        self._campaign_again()
        return self._dispatch.decision(self._decide(now))

    def _campaign_again(self) -> None:
        """After a resignation took effect, stand for election with the new candidacy."""
        held = self._mirror.get(self._resigned_to) if self._resigned_to is not None else None
        if held is not None:
            self._office, self._resigned_to = None, None
            self._dispatch.add(Campaign(held.key, held.create_revision))

    def _decide(self, now: Now) -> str:
        office = self._office
        if office is None:
            return "another agent leads"
        if self._dispatch.in_flight is not None:
            return f"{self._dispatch.in_flight} is being committed"
        if not self._mirror.knows(*self.scopes()):
            return "leads; reading the attempt"
        keys = office.keys
        living = self._mirror.record(Current, current(keys.run_id))
        now_round = self._mirror.record(Round, keys.round)
        if self._mirror.get(keys.outcome) is not None or living is None or living.attempt != keys.attempt:
            return "the attempt is over"
        if now_round is None or now_round.phase is Phase.ENDED:
            return "the attempt has no round to lead"
        nodes, world = registered_nodes(self._mirror, keys), self._last_world(keys, now_round)
        self._note_missing(now, nodes, world, keys)
        judge = self._judge(nodes, world, keys)
        if not judge.recorded and recorded_agent_lives(nodes, world):
            return self._resign(office)
        barred = exclusions(self._mirror, keys, now.utc)
        case = Case(now, now_round, office, judge, nodes, world, self._missing, barred)
        return self._answer(case) or self._lead(case)

    def _lead(self, case: Case) -> str:
        forms = case.round.phase is Phase.FORMING
        return self._forming.decide(case) if forms else self._running.decide(case)

    def _judge(self, nodes: Mapping[str, Node], world: World, keys: AttemptKeys) -> Judge:
        """What this coordinator's word counts: see `fencing`."""
        return Speaker(self._me, self._mirror).judge(nodes, world, keys, self._book.outstanding)

    def _resign(self, office: Office) -> str:
        """Stand behind all other candidates: a recorded one leads, since it knows what it promised."""
        if self._resigned_to is None:
            self._turn += 1
            self._resigned_to = office.keys.election(self._me.lease, self._turn)
            return "about to resign: a recorded agent is there to lead"
        self._dispatch.commit(
            "resign", office.resignation(self._resigned_to, self._me.incarnation, self._me.lease)
        )
        return "a recorded agent is there to lead"

    # Commands -----------------------------------------------------------------------------------------

    def _answer(self, case: Case) -> str | None:
        """Decide the oldest command of a person that has no answer; None if there is none."""
        keys, number = case.office.keys, case.round.number
        asked = commands.first_asked(self._mirror, keys.controls)
        if asked is None:
            return None
        held, command = asked
        facts = commands.Case(
            round=case.round,
            seats=case.world.seats,
            nodes=case.nodes,
            waiting=case.without_seat,
            exclusions=case.exclusions,
            interrupted=self._mirror.get(keys.interrupt(number)) is not None,
            spec=self._spec,
        )
        answer = commands.answer(command, facts, case.now.utc)
        self._dispatch.commit("command", case.office.answer(case.round, held, answer))
        return f"{command.verb.value} by {command.by}: {answer.command.phase.value}, {answer.command.answer}"
