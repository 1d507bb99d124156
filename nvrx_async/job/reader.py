"""Reads one job from etcd, each time all that belongs together at one revision. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import orjson

from nvrx_async.etcd import survey
from nvrx_async.etcd.types import MAX_TXN_OPERATIONS, KeyValue, Scope
from nvrx_async.job.codec import decode
from nvrx_async.job.errors import NoSuchJobError
from nvrx_async.job.keys import ROOT, AttemptKeys, current
from nvrx_async.job.names import nearest
from nvrx_async.job.records import (
    Assignment,
    Command,
    Current,
    Done,
    End,
    Exclusion,
    Fault,
    Interrupt,
    Job,
    Join,
    Node,
    Outcome,
    Phase,
    Round,
    Spare,
    WorldShard,
)
from nvrx_async.job.round_record import RoundRecord, assembled, seal_of
from nvrx_async.job.status import Held, is_fault

if TYPE_CHECKING:
    from nvrx_async.etcd.client import EtcdClient

T = TypeVar("T")
WORLDS = 16
"""Worlds whose members are told of; rounds in which nobody moved share one."""
_AFTER_SLASH = chr(ord("/") + 1)


async def run_ids(client: EtcdClient) -> tuple[str, ...]:
    """Names of all jobs that etcd knows: one request for each, however many keys they have."""
    found: list[str] = []
    root = Scope(f"{ROOT}/", prefix=True)
    not_before = ""
    while True:
        key = await survey.first_key(client, root, not_before=not_before)
        if key is None:
            return tuple(found)
        run_id = key[len(root.key) :].partition("/")[0]
        found.append(run_id)
        not_before = f"{root.key}{run_id}{_AFTER_SLASH}"


async def living_attempt(client: EtcdClient, run_id: str) -> tuple[Current, AttemptKeys]:
    """The attempt that `current` names.

    Raises:
        NoSuchJobError: there is no job of this name; the error knows the nearest ones.
    """
    key = current(run_id)
    held = await client.get(key)
    if held is None:
        known = await run_ids(client)
        raise NoSuchJobError(run_id, nearest(run_id, known), len(known))
    living = decode(Current, key, held.value)
    return living, AttemptKeys(run_id, living.attempt)


class Reader:
    """Reads one attempt."""

    def __init__(self, client: EtcdClient, keys: AttemptKeys, living: Current) -> None:
        self._client = client
        self.keys = keys
        self._living = living

    async def held(self, *, nodes: bool) -> Held:
        """How the attempt stands; with `nodes` all registrations and seats, else only how many there are.

        Raises:
            NoSuchJobError: the attempt's keys are incomplete, as of a job whose keys are being removed.
        """
        keys = self.keys
        scopes = [Scope(keys.job), Scope(keys.round), Scope(keys.outcome), keys.controls, keys.exclusions]
        scopes += [keys.nodes, keys.elections] if nodes else []
        listings = await self._client.list_all(tuple(scopes))
        job, now_round, outcome, controls, exclusions = (listing.items for listing in listings[:5])
        if not job or not now_round:
            raise NoSuchJobError(keys.run_id, (), 0)
        running = _one(Round, now_round[0])
        registered = {_name(item): _one(Node, item) for item in listings[5].items} if nodes else None
        ended = _one(Outcome, outcome[0]) if outcome else None
        joined: tuple[str, ...] = ()
        if running.phase is Phase.FORMING and ended is None:
            joined = await self._joined(running.number)
        return Held(
            run_id=keys.run_id,
            current=self._living,
            job=_one(Job, job[0]),
            round=running,
            fault=await self._last_fault(running.verdict),
            record=await self._standing(running, ended, world=nodes),
            outcome=ended,
            nodes=registered,
            nodes_present=len(registered)
            if registered is not None
            else await survey.count(self._client, keys.nodes),
            joined=joined,
            leader=_leader(listings[6].items, registered) if registered is not None else "",
            excluded={_name(item): _one(Exclusion, item) for item in exclusions},
            commands=tuple(_one(Command, item) for item in controls),
        )

    async def now_round(self) -> tuple[Round | None, Outcome | None]:
        """The key `round` and the outcome, None where there is none."""
        found = await self._client.list_all((Scope(self.keys.round), Scope(self.keys.outcome)))
        return _only(Round, found[0].items), _only(Outcome, found[1].items)

    async def anybody(self) -> bool:
        """Whether an agent is registered."""
        return await survey.count(self._client, self.keys.nodes) > 0

    async def rounds(self, numbers: Iterable[int]) -> tuple[RoundRecord, ...]:
        """Rounds without reports of nodes: what they were, and the verdicts on them."""
        keys, wanted = self.keys, list(numbers)
        scopes = [Scope(keys.round), Scope(keys.outcome)]
        scopes += [scope for n in wanted for scope in (Scope(keys.end(n)), Scope(keys.interrupt(n)))]
        listings = await self._client.list_all(tuple(scopes))
        running, outcome = _only(Round, listings[0].items), _only(Outcome, listings[1].items)
        found, before = [], None
        for place, number in enumerate(wanted):
            verdict = _only(End, listings[2 + 2 * place].items)
            interrupt = _only(Interrupt, listings[3 + 2 * place].items)
            found.append(
                assembled(
                    keys,
                    number,
                    now_round=running,
                    verdict=verdict,
                    before=before,
                    outcome=outcome,
                    interrupt=interrupt,
                )
            )
            before = verdict
        return tuple(found)

    async def round(self, number: int) -> RoundRecord:
        """One round with all reports of its nodes."""
        keys = self.keys
        singles = (
            Scope(keys.round),
            Scope(keys.outcome),
            Scope(keys.interrupt(number)),
            Scope(keys.end(number)),
            Scope(keys.end(number - 1)),
        )
        running, outcome, interrupt, end, before = await self._client.list_all(singles)
        now_round, verdict = _only(Round, running.items), _only(End, end.items)
        seal = seal_of(number, now_round, verdict)
        return assembled(
            keys,
            number,
            now_round=now_round,
            verdict=verdict,
            before=_only(End, before.items),
            outcome=_only(Outcome, outcome.items),
            interrupt=_only(Interrupt, interrupt.items),
            reports=await self._all(Fault, Scope(keys.fault(number, ""), prefix=True)),
            done=await self._all(Done, Scope(keys.done(number, ""), prefix=True)),
            joins=await self._all(Join, keys.joins(number)),
            world=await self._all(WorldShard, keys.worlds(*seal)) if seal else (),
        )

    async def assignments(self, numbers: Sequence[int]) -> tuple[Assignment, ...]:
        """Who had a seat in the last worlds of these rounds; unlike a registration it outlives its agent."""
        keys = self.keys
        scopes = (Scope(keys.round), *(Scope(keys.end(number)) for number in numbers))
        now_round, *ends = [listing.items for listing in await self._client.list_all(scopes)]
        running = _only(Round, now_round)
        told = [seal_of(n, running, _only(End, end)) for n, end in zip(numbers, ends, strict=True)]
        seals = sorted({seal for seal in told if seal is not None})[-WORLDS:]
        return tuple([one for seal in seals for one in await self._all(Assignment, keys.assignments(*seal))])

    async def _standing(self, running: Round, outcome: Outcome | None, *, world: bool) -> RoundRecord:
        """The round that `round` speaks of, with what is known of it without its reports."""
        keys, number = self.keys, running.number
        interrupt, before = await self._client.list_all(
            (Scope(keys.interrupt(number)), Scope(keys.end(number - 1)))
        )
        seal = seal_of(number, running, None)
        return assembled(
            keys,
            number,
            now_round=running,
            before=_only(End, before.items),
            outcome=outcome,
            interrupt=_only(Interrupt, interrupt.items),
            done=await self._all(Done, Scope(keys.done(number, ""), prefix=True)) if world else (),
            world=await self._all(WorldShard, keys.worlds(*seal)) if world and seal else (),
        )

    async def _last_fault(self, verdict: End | None) -> End | None:
        """The last verdict on a fault, from this one backwards: what people asked for is none."""
        while verdict is not None and not is_fault(verdict):
            numbers = range(verdict.number - 1, max(-1, verdict.number - 1 - MAX_TXN_OPERATIONS), -1)
            listings = await self._client.list_all(tuple(Scope(self.keys.end(n)) for n in numbers))
            ends = [_one(End, item) for listing in listings for item in listing.items]
            verdict = next((end for end in ends if is_fault(end)), ends[-1] if ends else None)
        return verdict

    async def _joined(self, number: int) -> tuple[str, ...]:
        """Who is ready for a round: by a key of its own, or in the report on the round before."""
        own = map(_name, await survey.pages(self._client, self.keys.joins(number)))
        before = Scope(self.keys.fault(number - 1, ""), prefix=True)
        reports = await survey.pages(self._client, before) if number > 0 else ()
        told = (_name(item) for item in reports if orjson.loads(item.value).get("join"))
        return tuple(sorted({*own, *told}))

    async def _all(self, cls: type[T], scope: Scope) -> list[T]:
        return [_one(cls, item) for item in await survey.pages(self._client, scope)]


def _one(cls: type[T], item: KeyValue) -> T:
    return decode(cls, item.key, item.value)


def _only(cls: type[T], items: tuple[KeyValue, ...]) -> T | None:
    return _one(cls, items[0]) if items else None


def _name(item: KeyValue) -> str:
    return item.key.rpartition("/")[2]


def _leader(candidates: tuple[KeyValue, ...], nodes: dict[str, Node]) -> str:
    """The node whose candidacy is the oldest; a candidate's record names its incarnation."""
    if not candidates:
        return ""
    oldest = min(candidates, key=lambda item: item.create_revision)
    incarnation = _one(Spare, oldest).incarnation
    return next((name for name, node in nodes.items() if node.incarnation == incarnation), "")
