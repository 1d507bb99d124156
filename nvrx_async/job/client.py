"""See and steer a job from outside: the same facts as `nvrx` shows, for programs.

```python
async with JobClient.connect(("etcd-0:2379",), "llama") as job:
    print((await job.status()).state)
    await job.wait_for("round=2", timeout_s=60)
    for event in [event async for event in job.events()]:
        print(event.at_utc, event.sentence)
```

Nothing but `command` writes.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio
import orjson

from nvrx_async.etcd.background import beside
from nvrx_async.etcd.client import EtcdClient
from nvrx_async.etcd.config import EtcdConfig
from nvrx_async.etcd.errors import UnavailableError
from nvrx_async.etcd.types import CreatedAt, Exists, KeyValue, ModifiedAt, Put, Scope, Txn
from nvrx_async.job.codec import decode, encode
from nvrx_async.job.errors import NoSuchRoundError, NotSoError, RecordError, UnansweredError
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.live import LIVE, LiveNode
from nvrx_async.job.patience import Absence, Patience
from nvrx_async.job.reached import ASKED_AT_ONCE, Ask, until_reached
from nvrx_async.job.reader import Reader, living_attempt
from nvrx_async.job.records import Command, CommandPhase, Node, Outcome, Phase, Round, Verb
from nvrx_async.job.round_record import RoundRecord, with_marks
from nvrx_async.job.status import Held, JobStatus, job_status
from nvrx_async.job.times import as_utc

if TYPE_CHECKING:
    from datetime import datetime

    from nvrx_async.etcd.feed import Feed
    from nvrx_async.job.job_events import JobEvent
    from nvrx_async.job.silence import Silent
    from nvrx_async.job.why import Why

LIVE_WITHIN_S = 0.5
MOST_ASKED = 256
"""Agents asked for live numbers without being told to: more make no table that a person reads."""
ANSWER_WITHIN_S = 30.0
EVENTS_OF_ROUNDS = 200
REPORTS_TOLD = 64
"""Reports of nodes among the events of a job; of at least two rounds."""


class JobClient:
    """One job, by its living attempt at each call. `ask` reaches the agents; without it nothing live is known.

    `silence`: the errors by which `ask` says that an agent gives no answer. Who follows or waits outlives an etcd that
    is away for a while (`patience.AWAY_S`), of which `away` is told.
    All calls raise `EtcdError` where etcd does, and `NoSuchJobError` while there is no such job.
    """

    def __init__(
        self,
        client: EtcdClient,
        run_id: str,
        *,
        ask: Ask | None = None,
        silence: tuple[type[Exception], ...] = (OSError,),
        away: Callable[[UnavailableError], None] | None = None,
    ) -> None:
        self._client = client
        self.run_id = run_id
        self._ask = ask
        self._away = away
        self._silence: tuple[type[Exception], ...] = (RecordError, *silence)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, endpoints: Sequence[str], run_id: str, *, ask: Ask | None = None
    ) -> AsyncIterator[Self]:
        """A client of its own connection, for plain etcd endpoints (`host:port`)."""
        async with EtcdClient(EtcdConfig(tuple(endpoints))) as client:
            yield cls(client, run_id, ask=ask)

    # Looking ------------------------------------------------------------------------------------------

    async def status(self, *, live: bool | None = None) -> JobStatus:
        """How the job stands. `live` asks the agents too; by default where they are not too many."""
        reader = await self._reader()
        held = await reader.held(nodes=True)
        if held.outcome is not None or live is False:
            return job_status(held)
        answers, silent = await self._live(held, every=live is True)
        return job_status(held, answers, silent)

    async def summary(self) -> JobStatus:
        """The same without nodes and ranks: cheap for a job of any size."""
        reader = await self._reader()
        return job_status(await reader.held(nodes=False))

    async def rounds(self, last: int = EVENTS_OF_ROUNDS) -> tuple[RoundRecord, ...]:
        """The last rounds of the attempt, without reports of nodes."""
        reader = await self._reader()
        newest = await self._newest(reader)
        return await reader.rounds(range(max(0, newest + 1 - last), newest + 1))

    async def round(self, number: int) -> RoundRecord:
        """One round with all that its nodes reported.

        Raises:
            NoSuchRoundError: there is none of this number.
        """
        reader = await self._reader()
        newest = await self._newest(reader)
        if not 0 <= number <= newest:
            raise NoSuchRoundError(self.run_id, number, newest)
        return await reader.round(number)

    async def log_folders(self) -> tuple[str, ...]:
        """Folders that nodes of the living attempt write their ranks' output below, each on its own node."""
        reader = await self._reader()
        held = await reader.held(nodes=True)
        told = {str(node.extra.get("log_dir", "")) for node in (held.nodes or {}).values()}
        for number in {max(0, held.round.number - 1), held.round.number}:
            told |= {node.log_dir for node in (await reader.round(number)).nodes}
        return tuple(sorted(told - {""}))

    async def why(self, number: int | None = None) -> Why:
        """Why a round ended; by default the last one that a fault ended, else what goes on.

        Raises:
            NoSuchRoundError: there is no round of this number.
        """
        from nvrx_async.job.why import explain  # noqa: PLC0415 - not for every verb

        reader = await self._reader()
        now_round, outcome = await reader.now_round()
        newest = now_round.number if now_round else 0
        stands = await self._abandoned(reader, now_round, outcome)
        asked = number
        if number is None:
            failed = outcome is not None and not outcome.success
            number = newest if failed or stands or newest == 0 else newest - 1
        if not 0 <= number <= newest:
            raise NoSuchRoundError(self.run_id, number, newest)
        record = await reader.round(number)
        following = await reader.round(number + 1) if number < newest else None
        followed = await self._lively(reader, following, outcome) if following else None
        told = explain(record, followed, stands=stands if number == newest else "")
        if (asked is None or asked == newest) and outcome is None:
            return replace(told, silent=await self._silent(reader, newest))
        return told

    async def restart(self, number: int | None = None) -> tuple[RoundRecord | None, RoundRecord]:
        """The round before, if there is one, and a round: the newest unless one is named, each with all reports.

        Raises:
            NoSuchRoundError: there is no round of this number.
        """
        reader = await self._reader()
        now_round, outcome = await reader.now_round()
        newest = now_round.number if now_round else 0
        number = newest if number is None else number
        if not 0 <= number <= newest:
            raise NoSuchRoundError(self.run_id, number, newest)
        before = await reader.round(number - 1) if number else None
        return before, await self._lively(reader, await reader.round(number), outcome)

    async def _silent(self, reader: Reader, newest: int) -> tuple[Silent, ...]:
        """Who does not get on in the round that runs, by what agents say of their ranks."""
        from nvrx_async.job.silence import silent_ranks  # noqa: PLC0415 - not for every verb

        held = await reader.held(nodes=True)
        answers, _ = await self._live(held, every=False)
        return silent_ranks(answers, held.nodes or {}, newest)

    async def _abandoned(self, reader: Reader, now_round: Round | None, outcome: Outcome | None) -> str:
        """What is to be said of an attempt that nobody has ended and nobody is in, "" where it is not so."""
        if now_round is None or outcome is not None or await reader.anybody():
            return ""
        return (
            "all its agents are gone without a word: killed, frozen, or cut off from etcd for longer than their leases "
            "last; the next start under this run id goes on from here"
        )

    async def _lively(self, reader: Reader, record: RoundRecord, outcome: Outcome | None) -> RoundRecord:
        """A round that runs, with what its nodes say of its start: they report that only when it ends."""
        if record.phase is not Phase.RUNNING or outcome is not None:
            return record
        answers, _ = await self._live(await reader.held(nodes=True), every=False)
        told = {name: one.marks for name, one in answers.items() if one.round == record.number}
        return with_marks(record, told)

    async def events(
        self, *, follow: bool = False, since: datetime | None = None
    ) -> AsyncGenerator[JobEvent, None]:
        """What happened, in order; with `follow` also what happens from now on, until the attempt has ended.

        Who leaves a followed iteration early closes it (`contextlib.aclosing`): it holds a connection.
        """
        since_utc = as_utc(since) if since is not None else ""
        seen: set[JobEvent] = set()
        reader = await self._reader()
        if not follow:
            for event in await self._events(reader, 0):
                if event.at_utc >= since_utc:
                    yield event
            return
        from nvrx_async.etcd.feed import Feed  # noqa: PLC0415 - not for every verb

        keys, first = reader.keys, 0
        async with Feed(self._client) as feed:
            feed.set_scopes(_followed(keys))
            patience = self.patience()
            async for _ in feed:
                number, over = await patience.of(partial(self._standing, reader))
                feed.set_scopes(_followed(keys, number))
                for event in await patience.of(partial(self._events, reader, first)):
                    if event not in seen and event.at_utc >= since_utc:
                        seen.add(event)
                        yield event
                first = max(0, number - 1)
                if over:
                    return

    def patience(self) -> Patience:
        """For who looks again and again: with an etcd that was there before."""
        return Patience(self._away)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Changes]:
        """Tells whenever something in the job was decided, and once at the start; for pictures that are redrawn."""
        from nvrx_async.etcd.feed import Feed  # noqa: PLC0415 - not for every verb

        reader = await self._reader()
        changes = Changes()
        async with Feed(self._client, away=changes.wake) as feed:
            feed.set_scopes(_followed(reader.keys))
            changes.feed = feed
            yield changes

    # Waiting and steering -----------------------------------------------------------------------------

    async def wait_for(self, text: str, *, timeout_s: float | None = None) -> JobStatus:
        """Wait for a condition: `running`, `ended`, `round=2`, `step=100`; returns the status it holds in.

        Raises:
            NoSuchError: it is no condition.
            NotSoError: it will never hold, or not within `timeout_s`.
        """
        from nvrx_async.job.conditions import Answer, condition  # noqa: PLC0415 - not for every verb

        wanted, never, patience, absence = condition(text), False, self.patience(), Absence()
        with anyio.move_on_after(timeout_s):
            async with self.changes() as changes:
                await changes.next()
                while not never:
                    status = await patience.of(lambda: self.status(live=wanted.step is not None))
                    answer = Answer.NOT_YET if absence.passes(status) else wanted.holds(status)
                    if answer is Answer.YES:
                        return status
                    never = answer is Answer.NEVER
                    if not never:
                        async with beside(partial(self._wake_at_step, changes, status, wanted.step)):
                            await changes.next(absence.looks_again_s)
        if never:
            raise NotSoError(
                f"job {self.run_id} is {status.state.value}: {text} will not be any more",
                f"nvrx why {self.run_id}",
            )
        raise NotSoError(
            f"job {self.run_id}: not {text} within {timeout_s:g} s", f"nvrx status {self.run_id}"
        )

    async def command(
        self,
        verb: Verb,
        *,
        by: str,
        now_utc: str,
        node_id: str | None = None,
        reason: str = "",
        extra: Mapping[str, Any] | None = None,
        timeout_s: float = ANSWER_WITHIN_S,
    ) -> Command:
        """Ask the job to do something, and wait for its answer. It is carried out once, whoever leads.

        Raises:
            NotSoError: the job has ended.
            UnansweredError: nobody answered in time; the command stands.
        """
        from nvrx_async.etcd.feed import Feed  # noqa: PLC0415 - not for every verb

        reader = await self._reader()
        keys = reader.keys
        stamp = "".join(sign for sign in now_utc if sign.isdigit())
        key = keys.control(f"{stamp}-{secrets.token_hex(4)}")
        asked = Command(verb, by, reason, now_utc, node_id, extra=extra or {})
        here = await self._client.get(current(self.run_id))
        attempt = ModifiedAt(current(self.run_id), here.mod_revision if here else 0)
        when = (attempt, CreatedAt(key, 0), CreatedAt(keys.outcome, 0), Exists(keys.round))
        async with Feed(self._client) as feed:
            written = await self._client.commit(Txn(when, (Put(key, encode(asked)),)))
            answered: Command | None = asked
            if written.succeeded:
                feed.set_scopes(frozenset({Scope(key), Scope(keys.outcome)}))
                with anyio.move_on_after(timeout_s):
                    answered = await self._answered(feed, key, keys.outcome)
            if not written.succeeded or answered is None:
                raise NotSoError(
                    f"job {self.run_id} has ended: it takes no commands", f"nvrx why {self.run_id}"
                )
            if answered is not asked:
                return answered
        raise UnansweredError(
            f"nobody answered the command within {timeout_s:g} s; it stands, and is carried out once somebody leads",
            f"nvrx status {self.run_id}",
        )

    async def _wake_at_step(self, changes: Changes, status: JobStatus, step: int | None) -> None:
        if step is not None and self._ask is not None:
            await until_reached(self._ask, self._silence, status, step)
            changes.wake()

    # Inside -------------------------------------------------------------------------------------------

    async def _answered(self, feed: Feed, key: str, outcome: str) -> Command | None:
        """The answered command; None if the job ended first: an answer is written only while there is no outcome."""
        async for item in feed:
            for held in (item,) if isinstance(item, KeyValue) else getattr(item, "items", ()):
                found = held if held.key == key else await self._client.get(key)
                command = decode(Command, key, found.value) if found is not None else None
                if command is not None and command.phase is not CommandPhase.ASKED:
                    return command
                if held.key == outcome:
                    return None
        raise AssertionError("a feed ends by an error only")

    async def _reader(self) -> Reader:
        living, keys = await living_attempt(self._client, self.run_id)
        return Reader(self._client, keys, living)

    async def _newest(self, reader: Reader) -> int:
        now_round, _ = await reader.now_round()
        return now_round.number if now_round is not None else 0

    async def _standing(self, reader: Reader) -> tuple[int, bool]:
        """Number of the round, and whether the attempt is over."""
        now_round, outcome = await reader.now_round()
        return (now_round.number if now_round else 0), outcome is not None

    async def _events(self, reader: Reader, first: int) -> tuple[JobEvent, ...]:
        """All events of the rounds from `first` on; of earlier ones without nodes' reports, where those are many."""
        from nvrx_async.job import job_events  # noqa: PLC0415 - not for every verb

        held = await reader.held(nodes=True)
        newest = held.round.number
        start = max(first, newest + 1 - EVENTS_OF_ROUNDS)
        last = max(2, REPORTS_TOLD // max(1, len(held.nodes or {})))
        detailed = range(max(start, newest + 1 - last), newest + 1)
        records = list(await reader.rounds(range(start, detailed.start)))
        records += [await reader.round(number) for number in detailed]
        return job_events.of_attempt(
            held.current.attempt,
            held.job.created_utc,
            tuple(records),
            held.nodes or {},
            held.commands,
            held.excluded,
            await reader.assignments(range(start, newest + 1)),
        )

    async def _live(self, held: Held, *, every: bool) -> tuple[dict[str, LiveNode], list[str]]:
        """Ask all agents at once, within a time that a person does not notice; who is silent is left out."""
        asked = {node_id: node for node_id, node in (held.nodes or {}).items() if node.probe}
        if self._ask is None or not asked or (len(asked) > MOST_ASKED and not every):
            return {}, []
        found: dict[str, LiveNode] = {}
        limiter = anyio.CapacityLimiter(ASKED_AT_ONCE)

        async def one(node_id: str, node: Node) -> None:
            async with limiter:
                answer = await self._answer(node)
            if answer is not None:
                found[node_id] = answer

        with anyio.move_on_after(LIVE_WITHIN_S):
            async with anyio.create_task_group() as tasks:
                for node_id, node in asked.items():
                    tasks.start_soon(one, node_id, node)
        return found, [node_id for node_id in asked if node_id not in found]

    async def _answer(self, node: Node) -> LiveNode | None:
        if self._ask is None:
            return None
        try:
            raw = await self._ask(node.probe, LIVE, {}, LIVE_WITHIN_S)
            return decode(LiveNode, node.probe, orjson.dumps(dict(raw)))
        except self._silence:
            return None  # a helper: what etcd holds is shown without it, and who was silent is named


class Changes:
    """See `JobClient.changes`."""

    feed: Feed

    def __init__(self) -> None:
        self._woken = False
        self._waiting: anyio.CancelScope | None = None

    async def next(self, at_most_s: float | None = None) -> None:
        """Wait until something was decided, etcd went away (who asks it then is told so), or so long."""
        with anyio.move_on_after(at_most_s) as self._waiting:
            if not self._woken:
                await anext(self.feed)
                self.feed.pass_over()
        self._woken, self._waiting = False, None

    def wake(self) -> None:
        """Look again: what nobody decided has changed, or etcd went away."""
        self._woken = True
        if self._waiting is not None:
            self._waiting.cancel()


def _followed(keys: AttemptKeys, number: int | None = None) -> frozenset[Scope]:
    """What tells that something was decided: a handful of keys, and in a round its nodes' reports."""
    scopes = {
        Scope(current(keys.run_id)),
        Scope(keys.round),
        Scope(keys.outcome),
        keys.interrupts,
        keys.nodes,
        keys.controls,
        keys.exclusions,
    }
    if number is not None:
        scopes |= {
            Scope(keys.fault(number, ""), prefix=True),
            Scope(keys.done(number, ""), prefix=True),
            Scope(keys.end(number)),
        }
    return frozenset(scopes)
