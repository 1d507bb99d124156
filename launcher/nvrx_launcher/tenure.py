"""The lease of one life after another, T, and the questions to peers while etcd does not answer.

Implements `nvrx_async.rounds.drivers.Peers`. A lease that is over in etcd is followed by a new one; whether
it gets to hold the registration, and so to move T, is the member machine's to decide (`Rely`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import anyio

from nvrx_async.etcd import EtcdClient, Session, UnavailableError
from nvrx_async.job.records import JobSpec
from nvrx_async.probe import ProbeError, QuestionRefusedError, ask
from nvrx_async.rounds.effects import AskPeers, Extend, Rely
from nvrx_async.rounds.events import Answered, Event, LeaseGranted, LeaseLost, Renewed
from nvrx_async.rounds.fencing import good_until
from nvrx_async.rounds.promises import Contact, Peer, Question
from nvrx_async.rounds.tolerance import Tolerance
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.errors import RequeueError

PROMISE = "promise"
"""Kind of the question."""
ANSWER_WITHIN_S = 0.8
RETRY_S = 0.5


class Ranks(Protocol):
    """What T is told to."""

    def good_until(self, moment_s: float) -> None:
        """Ranks may live and start before this moment."""

    def extend(self, number: int, until_s: float) -> None:
        """Ranks of this round may live until then."""


class Tenure:
    """See the module. `renewed` is told the send time of each acknowledged renewal.

    `store_ended` says why etcd will not come back, empty while it may.
    """

    def __init__(
        self,
        client: EtcdClient,
        spec: JobSpec,
        ranks: Ranks,
        *,
        token: str | None,
        renewed: Callable[[float], None],
        store_ended: Callable[[], str],
    ) -> None:
        self._client = client
        self._spec = spec
        self._ranks = ranks
        self._token = token
        self._on_renewed = renewed
        self._store_ended = store_ended
        self._tell: Callable[[Event], None] = lambda _event: None
        self._tolerance: Tolerance | None = None
        self._relied = 0
        self._acknowledged_s: float | None = None
        self._gap_ended_s: float | None = None
        self._cut_short = True
        self._session = self.new_session()

    @property
    def session(self) -> Session:
        """The lease of now, to be entered once by whoever begins the life."""
        return self._session

    def new_session(self) -> Session:
        """A session that was not entered yet."""
        ttl_s = self._spec.lease_ttl_s
        return Session(self._client, ttl_s=ttl_s, clock=boottime_s, on_renewed=self._renewed)

    def serve_life(self, tell: Callable[[Event], None], tolerance: Tolerance) -> None:
        """Tell the machines of this life from now on."""
        self._tell, self._tolerance = tell, tolerance

    def end(self) -> None:
        """The life is over and none of its ranks lives: its lease may be given up."""
        self._cut_short = False

    async def serve(self) -> None:
        """Follow one lease after another, until cancelled.

        Raises:
            EtcdError: etcd is there and gives no lease.
            RequeueError: it will not come back.
        """
        await self._session.lost.wait()
        self._tell(LeaseLost())
        while True:
            session = self.new_session()
            try:
                async with session:
                    try:
                        self._session = session
                        self._tell(LeaseGranted(session.lease_id))
                        await session.lost.wait()
                        self._tell(LeaseLost())
                    finally:
                        if self._cut_short:  # ranks may live: others must not take them for dead
                            session.orphan()
            except UnavailableError as error:
                if why := self._store_ended():
                    raise RequeueError(why, "the job can be requeued") from error
                await anyio.sleep(RETRY_S)

    # T ------------------------------------------------------------------------------------------------

    def _renewed(self, sent_at_s: float) -> None:
        before_s, self._acknowledged_s = self._acknowledged_s, sent_at_s
        if before_s is not None and sent_at_s - before_s > self._spec.lease_ttl_s / 2:
            self._gap_ended_s = sent_at_s
        self._on_renewed(sent_at_s)
        # The grant of the next lease is told while the lost one is still at hand: it is no renewal of that.
        holds = self._relied == self._session.lease_id and not self._session.lost.is_set()
        if self._relied and holds:
            self._move_t(sent_at_s)

    def _move_t(self, sent_at_s: float) -> None:
        until_s = good_until(sent_at_s, self._spec.lease_ttl_s, self._spec.kill_time_s)
        self._ranks.good_until(until_s)
        self._tell(Renewed(sent_at_s, until_s))

    def move_t(self, by: Rely | Extend) -> None:
        """Renewals of this lease move T from now on; or the ranks of a round, and no others, live until then."""
        if isinstance(by, Extend):
            self._ranks.extend(by.round, by.until_s)
            return
        self._relied = by.lease
        session = self._session
        if session.lease_id == by.lease and not session.lost.is_set():
            session.patient = not self._store_ended()
            self._move_t(session.renewed_at_s)

    # Questions ----------------------------------------------------------------------------------------

    async def ask(self, asking: AskPeers) -> Answered:
        """Ask all peers at once, and try a renewal; silence is an objection after a moment."""
        self._session.renew_now()
        if why := self._store_ended():
            self._session.patient = False
            return Answered(asking.sent_at_s, why)
        objections = {peer.node_id: "is silent" for peer in asking.peers}

        async def ask_one(peer: Peer, everybody: anyio.CancelScope) -> None:
            objection = await self._ask(peer, asking.question)
            if objection:
                objections[peer.node_id] = objection
                everybody.cancel()
            else:
                del objections[peer.node_id]

        with anyio.move_on_after(ANSWER_WITHIN_S) as everybody:
            async with anyio.create_task_group() as tasks:
                for peer in asking.peers:
                    tasks.start_soon(ask_one, peer, everybody)
        told = sorted(objections.items(), key=lambda one: one[1] == "is silent")
        return Answered(asking.sent_at_s, f"{told[0][0]} {told[0][1]}" if told else "")

    async def _ask(self, peer: Peer, question: Question) -> str:
        """What the peer objects, empty for a promise."""
        if not peer.probe:
            return "answers no questions"
        try:
            said = await ask(peer.probe, PROMISE, question.to_wire(peer), ANSWER_WITHIN_S, token=self._token)
        except ProbeError as error:
            return f"does not answer: {error}"
        return "" if said.get("yes") is True else str(said.get("reason", "says no"))

    def others(self, number: int) -> tuple[Peer, ...]:
        """The other agents of a round that runs."""
        return self._tolerance.others(number) if self._tolerance is not None else ()

    async def answer(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer another agent's question for a promise."""
        try:
            question, asked = Question.from_wire(payload)
        except ValueError as error:
            raise QuestionRefusedError(str(error)) from error
        if self._tolerance is None:
            raise QuestionRefusedError("this agent is not in the job yet")
        self._session.renew_now()
        said = self._tolerance.answer(question, asked, boottime_s(), self._contact)
        return {"yes": said.yes, "reason": said.reason}

    @property
    def _contact(self) -> Contact:
        return Contact(self._session.failing_since_s, self._gap_ended_s)
