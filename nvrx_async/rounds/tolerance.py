"""The machine that lets ranks outlive their lease's T: asks all recorded agents for their promise, and answers them.

It decides when to ask and what a set of answers is worth; `promises` holds what is said. It acts only while ranks
of this node run, and never longer than the outage limit past T: who was never asked waits that long.
"""

from __future__ import annotations

from typing import Protocol

from nvrx_async.etcd.types import Scope
from nvrx_async.job.records import PROBES, JobSpec, Phase, Round, WorldShard
from nvrx_async.rounds.effects import AskPeers, Decision, Effect, Extend, Notify, Waiting
from nvrx_async.rounds.events import Answered, Event, Now, Renewed
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.promises import (
    MOST_ASKED,
    Answer,
    Book,
    Contact,
    Peer,
    Question,
    lasts_until_s,
    shares_outage,
)
from nvrx_async.rounds.registration import Registration
from nvrx_async.rounds.world import last_world, seal_of

ASK_AHEAD_S = 1.5
"""So long before T the first question is sent: one that finds no answer can be asked again."""
ASK_AFTER_TTLS = 0.45
"""But not before so many TTLs passed without an acknowledgement: renewals come each third of one."""
ASK_EVERY_S = 1.0
ASK_AGAIN_S = 0.25
"""After a question that did not find everybody's yes."""

_RUNS_ON = "runs on"


class Own(Protocol):
    """What the member knows of this agent."""

    @property
    def registered(self) -> Registration | None:
        """As what this agent is in the attempt; kept when the lease is lost."""

    @property
    def living(self) -> int | None:
        """The round whose ranks run here, None if none do or they are being stopped."""


class Tolerance:
    """See the module. One object for one life of the agent; `book` outlives it."""

    def __init__(self, spec: JobSpec, mirror: Mirror, own: Own, book: Book) -> None:
        self._spec = spec
        self._mirror = mirror
        self._own = own
        self._book = book
        self._acknowledged_s = 0.0
        self._lease_until_s = 0.0
        self._promised: tuple[int, float] = (-1, 0.0)
        self._asking: AskPeers | None = None
        self._next_s = 0.0
        self._told: set[tuple[str, float]] = set()
        self._effects: list[Effect] = []
        self._wake_at_s: float | None = None

    # What must be known -------------------------------------------------------------------------------

    def scopes(self) -> frozenset[Scope]:
        """The member follows all that is needed here."""
        return frozenset()

    # What is known ------------------------------------------------------------------------------------

    def observe(self, event: Event, now: Now) -> None:
        """Note an event."""
        match event:
            case Renewed(sent_at_s=sent_at_s, good_until_s=good_until_s):
                if good_until_s > self._lease_until_s and (_RUNS_ON, self._lease_until_s) in self._told:
                    away_s = now.s - self._acknowledged_s
                    back = f"etcd answers again; its last sign of life was {away_s:.0f} s ago"
                    self._pending(Notify(Waiting(back, outage=False)))
                self._acknowledged_s = max(self._acknowledged_s, sent_at_s)
                self._lease_until_s = max(self._lease_until_s, good_until_s)
            case Answered() if self._asking is not None and event.sent_at_s == self._asking.sent_at_s:
                self._answered(self._asking, event, now)
            case _:
                pass

    def _answered(self, asking: AskPeers, event: Answered, now: Now) -> None:
        self._asking = None
        if event.objection:
            self._next_s = now.s + ASK_AGAIN_S
            self._tell("objection", f"etcd does not answer, and ranks stop soon: {event.objection}")
            return
        self._next_s = asking.sent_at_s + ASK_EVERY_S
        until_s = min(lasts_until_s(asking.sent_at_s), self._limit_s)
        number = asking.question.round
        if self._own.living == number:
            self._promised = (number, until_s)
            self._pending(Extend(number, until_s))

    # What to do ---------------------------------------------------------------------------------------

    def decide(self, now: Now) -> Decision:
        """What to do; see `Machine`."""
        self._wake_at_s = None
        reason = self._decide(now)
        effects, self._effects = tuple(self._effects), []
        return Decision(effects, self._wake_at_s, reason)

    def _decide(self, now: Now) -> str:
        registered, number = self._own.registered, self._own.living
        if registered is None or number is None or self._spec.outage_limit_s <= 0:
            return "no rank here outlives its lease"
        promised_round, promised_s = self._promised
        good_until_s = max(self._lease_until_s, promised_s if promised_round == number else 0.0)
        if now.s >= good_until_s:
            return "T has come: the keeper kills the ranks"
        ask_from_s = max(
            self._lease_until_s - ASK_AHEAD_S,
            self._acknowledged_s + ASK_AFTER_TTLS * self._spec.lease_ttl_s,
            self._next_s,
        )
        if now.s < ask_from_s:
            self._wake_at_s = ask_from_s
            return "the lease is good" if now.s < self._lease_until_s else "runs on by promises"
        if self._asking is not None:
            return "asking all recorded agents for their promise"
        if good_until_s >= self._limit_s:
            limit_s = self._spec.outage_limit_s
            self._tell("limit", f"etcd does not answer for {limit_s:g} s (--etcd-outage-limit): ranks stop")
            return "the outage limit is reached"
        return self._ask(now, number, registered)

    def _ask(self, now: Now, number: int, registered: Registration) -> str:
        now_round = self._mirror.record(Round, registered.keys.round)
        if now_round is None or now_round.number != number or now_round.token is None:
            return "its round is over: nobody is asked"
        peers = self._peers(now_round, registered)
        if peers is None:
            return "does not know whom to ask: ranks stop at T"
        question = Question(
            registered.keys.attempt,
            number,
            now_round.token,
            registered.node.node_id,
            registered.node.incarnation,
            before_t=now.s < self._lease_until_s,
        )
        self._asking = AskPeers(question, peers, now.s)
        self._pending(self._asking)
        all_of = (
            f"by the promise of {len(peers)} other agents" if peers else "since no other agent is in the job"
        )
        if not question.before_t:
            limit_s = self._spec.outage_limit_s
            self._tell(_RUNS_ON, f"etcd does not answer; ranks run on {all_of}, for {limit_s:g} s at most")
        return f"asking {len(peers)} recorded agents for their promise"

    def _peers(self, now_round: Round, registered: Registration) -> tuple[Peer, ...] | None:
        """All recorded agents but this one; None when they are not known or too many."""
        keys, seal = registered.keys, seal_of(now_round)
        if seal is None or not self._mirror.knows(keys.worlds(*seal), keys.all_struck(seal[0])):
            return None
        probes: dict[str, str] = {}
        for shard in self._mirror.records(WorldShard, keys.worlds(*seal)).values():
            probes.update(shard.extra.get(PROBES, {}))
        recorded = last_world(self._mirror, keys, now_round).recorded
        if recorded.get(registered.node.node_id) != registered.node.incarnation or len(recorded) > MOST_ASKED:
            return None
        return tuple(
            Peer(node_id, incarnation, probes.get(node_id, ""))
            for node_id, incarnation in recorded.items()
            if node_id != registered.node.node_id
        )

    def others(self, number: int) -> tuple[Peer, ...]:
        """The other agents of a round that runs, none where they are not known."""
        registered = self._own.registered
        now_round = self._mirror.record(Round, registered.keys.round) if registered is not None else None
        if registered is None or now_round is None or now_round.number != number:
            return ()
        return self._peers(now_round, registered) or ()

    # Being asked --------------------------------------------------------------------------------------

    def answer(self, question: Question, asked: str, now_s: float, contact: Contact) -> Answer:
        """Answer another agent. A yes is noted as a promise before it is said."""
        registered = self._own.registered
        if registered is None or registered.node.incarnation != asked:
            return Answer(yes=False, reason="is not the agent that was asked any more")
        objection = self._objection(question, registered)
        if objection is not None:
            return Answer(yes=False, reason=objection)
        shared = shares_outage(question, contact, now_s, self._spec.lease_ttl_s)
        if shared is None:
            return Answer(yes=False, reason="reaches etcd itself")
        self._book.promise(question.incarnation, now_s, self._spec)
        return Answer(yes=True, reason=shared)

    def _objection(self, question: Question, registered: Registration) -> str | None:
        keys, number = registered.keys, question.round
        now_round = self._mirror.record(Round, keys.round)
        if question.attempt != keys.attempt or now_round is None:
            return "is in another attempt"
        same = (now_round.number, now_round.token) == (number, question.token)
        if not same or now_round.phase is not Phase.RUNNING or self._mirror.get(keys.interrupt(number)):
            return f"knows that round {number} is over"
        if self._book.gave_up(question.incarnation, number):
            return f"has given {question.node_id} up"
        return None

    # Small steps --------------------------------------------------------------------------------------

    @property
    def _limit_s(self) -> float:
        """No rank may live past this, whoever promises: unrecorded agents wait no longer."""
        return self._lease_until_s + self._spec.outage_limit_s

    def _pending(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _tell(self, kind: str, sentence: str) -> None:
        """Once for each outage."""
        if (kind, self._lease_until_s) not in self._told:
            self._told.add((kind, self._lease_until_s))
            self._pending(Notify(Waiting(sentence, outage=True)))
