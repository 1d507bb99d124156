"""The coordinator machine: what the elected agent decides for the job.

It seals worlds, notices lost members, judges why a round ended, opens the next one or writes the outcome.
What it writes stands in `office`, what it reads of the last world in `world`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from nvrx_async.etcd.types import Scope, Txn
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    Current,
    End,
    Exclusion,
    FaultKind,
    Interrupt,
    JobSpec,
    Level,
    Node,
    Phase,
    Purpose,
    Root,
    Round,
    Seat,
    Stop,
    StopPhase,
    StopVote,
    Struck,
)
from nvrx_async.job.trace import opened
from nvrx_async.rounds import commands
from nvrx_async.rounds.closing import Case, asked_for, asked_root, end_of, outcome_of, root_of, verdict_on
from nvrx_async.rounds.effects import Campaign, Commit, Decision, Effect, Notify, Waiting
from nvrx_async.rounds.events import Committed, Deposed, Elected, Event, LeaseGranted, Now, Refused
from nvrx_async.rounds.exclusions import BY_POLICY, exclusions
from nvrx_async.rounds.fencing import Judge, fenced_at, given_up_at, is_present
from nvrx_async.rounds.growth import growth, waiting
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.ladder import Verdict
from nvrx_async.rounds.limits import with_agreed_limits
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.missing import Missing
from nvrx_async.rounds.office import Office, runs_again
from nvrx_async.rounds.own_word import Speaker, recorded_agent_lives
from nvrx_async.rounds.policy import came_to_the_end
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.seal import Forming, Sealed, Wait, seal, unclear
from nvrx_async.rounds.seating import keeps_seats
from nvrx_async.rounds.sentences import seat_lost
from nvrx_async.rounds.stop_state import next_stop, within_s
from nvrx_async.rounds.world import World, finished, joined, last_world, registered_nodes, reports, seal_of

FAILED = 1
NEVER_READY = 3
REQUEUE = 75
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
        self._agree_s = agree_s
        self._spec = spec
        self._mirror = mirror
        self._office: Office | None = None
        self._scopes_for: tuple[Office | None, str | None, int] | None = None
        self._scopes: frozenset[Scope] = frozenset()
        self._turn = 0
        self._seals = 0
        self._in_flight: str | None = None
        self._resigned_to: str | None = None
        self._world_for: tuple[tuple[int, str] | None, int, int] = (None, 0, 0)
        self._world = World()
        self._missing = Missing()
        self._missing_for: tuple[object, ...] = ()
        self._forming_since_s: dict[int, float] = {}
        self._stop_since_s: dict[int, float] = {}
        self._running_since_s: dict[int, float] = {}
        self._told: str | None = None
        self._effects: list[Effect] = []
        self._wake_at_s: float | None = None

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
            case Committed(tag=tag) | Refused(tag=tag) if tag == self._in_flight:
                self._in_flight = None
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
        self._effects, self._wake_at_s = [], None
        self._campaign_again()
        reason = self._decide(now)
        return Decision(tuple(self._effects), self._wake_at_s, reason)

    def _campaign_again(self) -> None:
        """After a resignation took effect, stand for election with the new candidacy."""
        held = self._mirror.get(self._resigned_to) if self._resigned_to is not None else None
        if held is not None:
            self._office, self._resigned_to = None, None
            self._effects.append(Campaign(held.key, held.create_revision))

    def _decide(self, now: Now) -> str:
        office = self._office
        if office is None:
            return "another agent leads"
        if self._in_flight is not None:
            return f"{self._in_flight} is being committed"
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
        case = Case(now, now_round, office, judge, nodes, world, barred)
        return self._answer(case) or self._lead(case)

    def _lead(self, case: Case) -> str:
        return self._form(case) if case.round.phase is Phase.FORMING else self._watch_over(case)

    def _judge(self, nodes: Mapping[str, Node], world: World, keys: AttemptKeys) -> Judge:
        """What this coordinator's word counts: see `fencing`."""
        return Speaker(self._me, self._mirror).judge(nodes, world, keys, self._book.outstanding)

    def _resign(self, office: Office) -> str:
        """Stand behind all other candidates: a recorded one leads, since it knows what it promised."""
        if self._resigned_to is None:
            self._turn += 1
            self._resigned_to = office.keys.election(self._me.lease, self._turn)
            return "about to resign: a recorded agent is there to lead"
        self._commit("resign", office.resignation(self._resigned_to, self._me.incarnation, self._me.lease))
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
        self._commit("command", case.office.answer(case.round, held, answer))
        return f"{command.verb.value} by {command.by}: {answer.command.phase.value}, {answer.command.answer}"

    def _waiting(self, case: Case, barred: Mapping[str, Exclusion]) -> tuple[str, ...]:
        """Who is ready for the next round and holds no seat."""
        number = case.round.number if case.round.phase is Phase.FORMING else case.round.number + 1
        joins = joined(self._mirror, case.office.keys, number)
        return waiting(joins, case.nodes, case.world.seats, barred)

    # Forming ------------------------------------------------------------------------------------------

    def _form(self, case: Case) -> str:
        number, now_s = case.round.number, case.now.s
        self._forming_since_s = {number: self._forming_since_s.get(number, now_s)}
        forming = self._forming(case, number, self._forming_since_s[number])
        if case.finishes is not None:
            return self._stop(case, forming, asked_for(case.finishes))
        result = seal(now_s, forming, case.judge, self._spec)
        if isinstance(result, Sealed):
            return self._seal(case, result)
        if result.expired:
            return self._give_up(case, result)
        # Before anybody joined there is nothing to say: agents join within moments.
        self._wait(result, f"round {number}: {result.reason}" if forming.joins else self._told)
        return result.reason

    def _forming(self, case: Case, number: int, since_s: float) -> Forming:
        keys, before = case.office.keys, number - 1
        return Forming(
            number=number,
            since_s=since_s,
            joins=joined(self._mirror, keys, number),
            nodes=case.nodes,
            registered={
                held.key[len(keys.nodes.key) :]: held.create_revision
                for held in self._mirror.under(keys.nodes)
            },
            previous=case.world.seats,
            reports=reports(self._mirror, keys, before),
            done=finished(self._mirror, keys, before),
            missing_since=self._missing.since,
            excluded=case.exclusions,
        )

    def _seal(self, case: Case, sealed: Sealed) -> str:
        there, wanted = len(sealed.spares), self._spec.policy.spares
        if there < wanted:
            self._tell(
                f"for {wanted - there} more to wait as spare; there are {there} of --spares {wanted}", None
            )
        seal = seal_of(case.round)
        # After an outage that took its lease, the coordinator seals anew: its session is older than that seal.
        keeps = seal is not None and keeps_seats(case.world, sealed, case.round.number, seal[0])
        if seal is not None and keeps and case.judge.older_than_seal:
            self._commit("seal", case.office.run_again(case.round, sealed, seal, case.now.utc))
            return f"running round {case.round.number} as the one before: {sealed.reason}"
        self._give_up_on(case)
        self._seals += 1
        token = f"{self._me.incarnation}-{self._seals}"
        self._commit("seal", *case.office.seal(case.round, sealed, token, case.now.utc))
        return f"sealing round {case.round.number}: {sealed.reason}"

    def _give_up(self, case: Case, wait: Wait) -> str:
        never = case.round.number == 0
        reason = f"in {self._spec.join_timeout_s:g} s (--join-timeout) {wait.reason}"
        reason = f"never started: {reason}" if never else f"too few nodes to go on: {reason}"
        return self._fail(case, NEVER_READY if never else REQUEUE, reason)

    # Running ------------------------------------------------------------------------------------------

    def _watch_over(self, case: Case) -> str:
        keys, number, seats = case.office.keys, case.round.number, case.world.seats
        interrupt = self._mirror.record(Interrupt, keys.interrupt(number))
        if interrupt is not None:
            return self._close(case, interrupt)
        done = case.world.spoken_for(finished(self._mirror, keys, number))
        lost = self._lost(case, [seat for seat in seats if seat.node_id not in done])
        if lost is not None:
            return self._interrupt_lost(case, lost)
        if len(done) == len(seats):
            return self._all_done(case, done)
        votes = self._mirror.records(StopVote, Scope(keys.stop_vote(number, ""), prefix=True))
        stop = next_stop(case.round, self._mirror.record(Stop, keys.stop(number)), votes, seats, done)
        if stop is not None:
            self._commit("stop", case.office.stop(case.round, stop))
            return f"round {number} is to stop: {stop.phase.value}, at step {stop.step}"
        if case.stop is not None:
            return self._end_for(case, case.stop)
        return self._strike(case, done) or self._grow(case)

    def _lost(self, case: Case, expected: Sequence[Seat]) -> Seat | None:
        """The first member that is not waited for any more."""
        since_s, at_s = self._missing.since_s, case.now.s
        for seat in expected:
            if not is_present(seat, case.nodes):
                until_s = given_up_at(seat, case.nodes, since_s[seat.node_id], case.judge, self._spec)
                if at_s >= until_s:
                    return seat
                self._wake(until_s)
        return None

    def _strike(self, case: Case, done: Collection[str]) -> str | None:
        """A spare or a done member that is gone for good is asked for no promises: its silence would end them all."""
        if self._spec.outage_limit_s <= 0:
            return None
        running = {seat.node_id for seat in case.world.seats} - set(done)
        for one in case.world.named:
            if one.node_id in running or one.incarnation in case.world.struck or is_present(one, case.nodes):
                continue
            since_s = self._missing.since_s[one.node_id]
            at_s, why = fenced_at(one, case.nodes, since_s, case.judge, self._spec)
            if case.now.s >= at_s:
                struck = Struck(one.node_id, one.incarnation, why)
                self._commit("strike", case.office.strike(struck, case.round))
                return f"{one.node_id} need not be asked any more: {why}"
            self._wake(at_s)
        return None

    def _grow(self, case: Case) -> str:
        """End the round for nodes that wait, where the policy lets them in."""
        number, now_s, keys = case.round.number, case.now.s, case.office.keys
        self._running_since_s = {number: self._running_since_s.get(number, now_s)}
        free = self._waiting(case, case.exclusions)
        allowed = self._mirror.get(keys.grow(number)) is not None
        step = growth(
            now_s, self._running_since_s[number], case.world.seats, free, self._spec, allowed=allowed
        )
        if isinstance(step, Stop):
            self._commit("stop", case.office.stop(case.round, step))
            return f"round {number} is to stop: {step.reason}"
        if step is not None:
            self._wait(Wait(step.sentence, step.at_s), step.sentence)
        return f"round {number} runs"

    def _all_done(self, case: Case, done: Collection[str]) -> str:
        """All ranks exited with 0: they finished, or they ended at the step that was agreed on."""
        stop, told = case.stop, finished(self._mirror, case.office.keys, case.round.number)
        at_the_end = all(came_to_the_end(told[node_id].extra) for node_id in done)
        if stop is None or stop.phase is not StopPhase.AGREED or at_the_end:
            return self._succeed(case)
        verdict = asked_for(stop, case.round.ledger)
        end = end_of(case, asked_root(stop.reason), verdict)
        if stop.purpose is Purpose.FINISH:
            return self._fail(case, verdict.exit_code or FAILED, stop.reason, end)
        return self._restart(case, end, verdict)

    def _end_for(self, case: Case, stop: Stop) -> str:
        """End the round by an interrupt where its ranks do not agree on a step, or take too long to come to it."""
        number, now_s = case.round.number, case.now.s
        self._stop_since_s = {number: self._stop_since_s.get(number, now_s)}
        due_s = self._stop_since_s[number] + within_s(stop, self._agree_s)
        if stop.phase is not StopPhase.REFUSED and now_s < due_s:
            self._wake(due_s)
            return f"round {number} stops at one step: {stop.reason}"
        interrupt = Interrupt(self._me.node_id, FaultKind.ASKED, "", stop.reason, case.now.utc)
        self._commit("interrupt", case.office.interrupt_asked(interrupt, number))
        return f"round {number} is over: {stop.reason}"

    def _interrupt_lost(self, case: Case, seat: Seat) -> str:
        reason = seat_lost(seat)
        interrupt = Interrupt(self._me.node_id, FaultKind.NODE_LOST, seat.node_id, reason, case.now.utc)
        self._commit("interrupt", case.office.interrupt(seat.node_id, interrupt, case.round.number))
        return reason

    def _close(self, case: Case, interrupt: Interrupt) -> str:
        """Judge an interrupted round once every member has reported or is lost."""
        keys, number, world = case.office.keys, case.round.number, case.world
        told = reports(self._mirror, keys, number)
        silent = list(itertools.islice(world.silent(told, case.nodes), 8))
        if silent:
            return f"round {number} is over; {', '.join(silent)} still to report"
        root = root_of(case, interrupt, told, finished(self._mirror, keys, number))
        verdict = verdict_on(case, root, told, self._spec, self._substitutes(case, root))
        end = end_of(case, root, verdict)
        if verdict.level in (Level.STOP, Level.REQUEUE):
            return self._stop(case, self._forming(case, number + 1, case.now.s), verdict, end)
        return self._restart(case, end, verdict)

    def _substitutes(self, case: Case, root: Root) -> tuple[str, ...]:
        """Who waits and could take the seat of the node that is to blame, or lost."""
        seat = next((seat for seat in case.world.seats if seat.node_id == root.node_id), None)
        free = self._waiting(case, case.exclusions)
        return tuple(name for name in free if seat is not None and case.nodes[name].slots == seat.slots)

    # What comes next ----------------------------------------------------------------------------------

    def _restart(self, case: Case, end: End, verdict: Verdict) -> str:
        told = reports(self._mirror, case.office.keys, end.number)
        stands = seal_of(case.round)
        keys = case.office.keys
        trace = opened(keys.run_id, keys.attempt, end.number + 1, case.now.utc, self._me.incarnation)
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
        self._commit("end", case.office.next_round(case.round, end, following, absent, barred))
        return f"ending round {end.number}: {end.root.sentence}; {end.reason}"

    def _at_once(self, case: Case, following: Round) -> Round:
        """The next round as it runs where all have joined it and nobody moves; else it has to form."""
        forming = self._forming(case, following.number, case.now.s)
        sealed, stands = seal(case.now.s, forming, case.judge, self._spec), seal_of(following)
        if stands is None or not isinstance(sealed, Sealed) or not case.judge.older_than_seal:
            return following
        if not keeps_seats(case.world, sealed, following.number, stands[0]):
            return following
        return runs_again(following, sealed, stands, case.now.utc)

    def _stop(self, case: Case, forming: Forming, verdict: Verdict, end: End | None = None) -> str:
        """Like a seal, an outcome waits until nothing of the last world can live."""
        wait = unclear(case.now.s, forming.previous, forming, case.judge, self._spec)
        if wait is not None:
            self._wait(wait, f"round {forming.number - 1} is over; {wait.reason}")
            return wait.reason
        return self._fail(case, verdict.exit_code or FAILED, verdict.reason, end)

    def _fail(self, case: Case, exit_code: int, reason: str, end: End | None = None) -> str:
        outcome = outcome_of(case, exit_code, reason, self._me.launch_id, end)
        absent = case.world.absent(case.nodes)
        self._give_up_on(case)
        self._commit("outcome", *case.office.failure(case.round, outcome, end, absent))
        return reason

    def _succeed(self, case: Case) -> str:
        outcome = outcome_of(case, 0, "all ranks finished", self._me.launch_id, None)
        self._commit("outcome", case.office.success(case.round, outcome))
        return outcome.reason

    def _give_up_on(self, case: Case) -> None:
        """Members taken for dead get no promise of this agent any more: what it commits may take effect late."""
        number = case.round.number - (1 if case.round.phase is Phase.FORMING else 0)
        absent = [seat.incarnation for seat in case.world.seats if not is_present(seat, case.nodes)]
        self._book.give_up(number, frozenset(absent))

    # Small steps --------------------------------------------------------------------------------------

    def _commit(self, tag: str, *txns: Txn) -> None:
        self._in_flight = tag
        self._effects.append(Commit(tag, txns))

    def _wait(self, wait: Wait, sentence: str | None) -> None:
        self._wake(wait.until_s)
        self._tell(sentence, wait.until_s)

    def _tell(self, sentence: str | None, until_s: float | None) -> None:
        if sentence is not None and sentence != self._told:
            self._told = sentence
            self._effects.append(Notify(Waiting(sentence, until_s)))

    def _wake(self, at_s: float | None) -> None:
        if at_s is not None:
            self._wake_at_s = at_s if self._wake_at_s is None else min(self._wake_at_s, at_s)
