"""One round of a job, put together from what etcd holds of it.

What `nvrx`, spans and docs say of a round is a projection of this record, so that they cannot contradict each
other. Pure: whoever reads etcd, a mirror of it or a history file passes the records in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from nvrx_async.job.codec import decode, encode
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import (
    MARKS,
    OF_ROUND,
    Done,
    End,
    Fault,
    Interrupt,
    Join,
    Level,
    Mark,
    Outcome,
    Phase,
    RankEnd,
    Root,
    Round,
    Seat,
    Spare,
    WorldShard,
)
from nvrx_async.job.times import first, last
from nvrx_async.job.trace import root_of

T = TypeVar("T")
_DIGEST_CHARS = 16
_OF_ROUND = ("opened_utc", "running_utc", "token", "sealed_in", "world_size", "nodes", "why")


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """Moments of a round on one node, in UTC by that node's clock; unknown ones are left out.

    `log_dir`: the folder on that node that the job's output lies below, "" if it did not say.
    """

    node_id: str
    host: str
    at_utc: Mapping[Mark, str]
    log_dir: str = ""


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Moments of a round over all nodes, in UTC, "" for unknown.

    Of `fault_utc` the first node's counts, of all others the last one's. `opened_utc`, `running_utc` (its world
    is sealed) and `ended_utc` (the verdict) are the coordinator's.
    """

    opened_utc: str = ""
    joined_utc: str = ""
    running_utc: str = ""
    released_utc: str = ""
    started_utc: str = ""
    hello_utc: str = ""
    ready_utc: str = ""
    first_step_utc: str = ""
    fault_utc: str = ""
    told_utc: str = ""
    stopping_utc: str = ""
    gone_utc: str = ""
    reported_utc: str = ""
    ended_utc: str = ""


@dataclass(frozen=True, slots=True)
class Before:
    """How the round before ended: why this one is."""

    number: int
    sentence: str
    level: Level | None
    ended_utc: str = ""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round.

    `why`: why this round is. `root`, `level` and `decision` (the sentence on what is done and why) are None and
    "" until the verdict. `reports` are the nodes' own, `done` the nodes all of whose ranks exited with 0.
    `trace_id` is where traces tell of it, 32 hexadecimal digits.
    `digest` is equal for equal evidence: interrupt, reports and root. `outcome` is set on the attempt's last.
    `node_count`: nodes with a seat; `seats` are fewer where one node alone tells of the round.
    """

    run_id: str
    attempt: int
    number: int
    phase: Phase
    why: str = ""
    world_size: int = 0
    seats: tuple[Seat, ...] = ()
    spares: tuple[Spare, ...] = ()
    interrupt: Interrupt | None = None
    reports: tuple[Fault, ...] = ()
    done: tuple[str, ...] = ()
    root: Root | None = None
    level: Level | None = None
    decision: str = ""
    outcome: Outcome | None = None
    times: RoundTimes = RoundTimes()
    nodes: tuple[NodeMarks, ...] = ()
    before: Before | None = None
    digest: str = ""
    trace_id: str = ""
    node_count: int = 0

    @property
    def ends(self) -> tuple[tuple[str, str, RankEnd], ...]:
        """Node, host and end of every rank that was reported, by rank."""
        found = [(report.node_id, report.host, end) for report in self.reports for end in report.ends]
        return tuple(sorted(found, key=lambda one: one[2].rank))

    @property
    def success(self) -> bool:
        """All ranks of the job finished in this round."""
        return self.outcome is not None and self.outcome.success


def round_as_extra(now_round: Round) -> dict[str, Any]:
    """What a verdict keeps of the round that it ends: the key `round` speaks of the next one by then."""
    return {OF_ROUND: _of_round(now_round)}


def seal_of(number: int, now_round: Round | None, verdict: End | None) -> tuple[int, str] | None:
    """Round and token under which the world of this round stands, None before it is sealed or where nobody tells."""
    told = _round_told(number, now_round, verdict)
    token, sealed_in = told.get("token"), int(told.get("sealed_in", -1))
    return (sealed_in if sealed_in >= 0 else number, str(token)) if token else None


def round_record(keys: AttemptKeys, number: int, held: Mapping[str, bytes]) -> RoundRecord:
    """Put a round together from keys and values of its attempt, of which any may be missing.

    Of use are `round`, `outcome`, the round's interrupt, all below `rounds/<number>/`, the world of its seal, and
    the verdict on the round before.

    Raises:
        RecordError: a value is not what its key says.
    """

    def one(cls: type[T], key: str) -> T | None:
        return decode(cls, key, held[key]) if key in held else None

    def under(cls: type[T], prefix: str) -> dict[str, T]:
        return {
            key[len(prefix) :]: decode(cls, key, held[key]) for key in sorted(held) if key.startswith(prefix)
        }

    now_round, verdict = one(Round, keys.round), one(End, keys.end(number))
    seal = seal_of(number, now_round, verdict)
    worlds = under(WorldShard, keys.worlds(*seal).key) if seal else {}
    return assembled(
        keys,
        number,
        now_round=now_round,
        verdict=verdict,
        before=one(End, keys.end(number - 1)),
        outcome=one(Outcome, keys.outcome),
        interrupt=one(Interrupt, keys.interrupt(number)),
        reports=under(Fault, keys.fault(number, "")).values(),
        done=under(Done, keys.done(number, "")).values(),
        joins=(
            *under(Join, keys.joins(number).key).values(),
            *(told.join for told in under(Fault, keys.fault(number - 1, "")).values() if told.join),
        ),
        world=worlds.values(),
    )


def assembled(
    keys: AttemptKeys,
    number: int,
    *,
    now_round: Round | None = None,
    verdict: End | None = None,
    before: End | None = None,
    outcome: Outcome | None = None,
    interrupt: Interrupt | None = None,
    reports: Iterable[Fault] = (),
    done: Iterable[Done] = (),
    joins: Iterable[Join] = (),
    world: Iterable[WorldShard] = (),
) -> RoundRecord:
    """Put a round together from its records; `now_round` may speak of a later one."""
    told = _round_told(number, now_round, verdict)
    shards = sorted(world, key=lambda shard: shard.shard)
    seats = tuple(seat for shard in shards for seat in shard.seats)
    reported = tuple(sorted(reports, key=lambda report: report.node_id))
    finished = sorted(done, key=lambda one: one.node_id)
    verdict = verdict or _verdict_in(now_round, number)
    final = outcome if outcome is not None and outcome.round == number else None
    root = verdict.root if verdict else final.root if final else None
    marks = _node_marks(seats, [*joins, *finished, *reported])
    return RoundRecord(
        run_id=keys.run_id,
        attempt=keys.attempt,
        number=number,
        phase=_phase(number, now_round, verdict, final),
        why=str(told.get("why", "")),
        world_size=int(told.get("world_size", 0)),
        seats=seats,
        spares=tuple(spare for shard in shards for spare in shard.spares),
        interrupt=interrupt,
        reports=reported,
        done=tuple(one.node_id for one in finished),
        root=root,
        level=verdict.level if verdict else None,
        decision=verdict.reason if verdict else final.reason if final else "",
        outcome=final,
        times=_times(told, marks, interrupt, root, verdict, final),
        nodes=marks,
        before=_before(number, before or _verdict_in(now_round, number - 1)),
        digest=_digest(interrupt, reported, root),
        trace_id=str(told.get("trace_id", "")),
        node_count=int(told.get("nodes", 0)) or len(seats),
    )


def with_marks(record: RoundRecord, told: Mapping[str, Mapping[str, str]]) -> RoundRecord:
    """The round with what agents said of its moments when they were asked: marks as reports carry them, by node."""
    if not told:
        return record
    hosts = {seat.node_id: seat.host for seat in record.seats}
    known = {node.node_id: dict(node.at_utc) for node in record.nodes}
    folders = {node.node_id: node.log_dir for node in record.nodes}
    for node_id, raw in told.items():
        known[node_id] = {**_marks_in(raw), **known.get(node_id, {})}
    nodes = tuple(
        NodeMarks(node_id, hosts.get(node_id, ""), known[node_id], folders.get(node_id, ""))
        for node_id in sorted(known)
    )
    return replace(record, nodes=nodes, times=replace(record.times, **_latest(nodes)))


def _round_told(number: int, now_round: Round | None, verdict: End | None) -> Mapping[str, Any]:
    """What the round was: from `round` while that speaks of it, else from its verdict."""
    if now_round is not None and now_round.number == number:
        return _of_round(now_round)
    kept = verdict.extra.get(OF_ROUND) if verdict else None
    return kept if isinstance(kept, Mapping) else {}


def _of_round(now_round: Round) -> dict[str, Any]:
    root = root_of(now_round)
    traced = {"trace_id": f"{root.trace_id:032x}"} if root is not None else {}
    return {name: getattr(now_round, name) for name in _OF_ROUND} | traced


def _verdict_in(now_round: Round | None, number: int) -> End | None:
    """The verdict that `round` carries, if it is the one on this round."""
    verdict = now_round.verdict if now_round else None
    return verdict if verdict is not None and verdict.number == number else None


def _phase(number: int, now_round: Round | None, verdict: End | None, final: Outcome | None) -> Phase:
    if verdict is not None or final is not None or now_round is None or now_round.number > number:
        return Phase.ENDED
    return now_round.phase if now_round.number == number else Phase.FORMING


def _before(number: int, verdict: End | None) -> Before | None:
    if verdict is None or verdict.number != number - 1:
        return None
    return Before(verdict.number, verdict.root.sentence, verdict.level, verdict.ended_utc)


def _node_marks(seats: Iterable[Seat], told: Iterable[Join | Done | Fault]) -> tuple[NodeMarks, ...]:
    """All that was written of moments, by node; what the same node says later replaces what it said before."""
    hosts = {seat.node_id: seat.host for seat in seats}
    found: dict[str, dict[Mark, str]] = {}
    folders: dict[str, str] = {}
    for one in told:
        raw = one.extra.get(MARKS)
        moments = found.setdefault(one.node_id, {})
        if isinstance(raw, Mapping):
            moments.update(_marks_in(raw))
        if "log_dir" in one.extra:
            folders[one.node_id] = str(one.extra["log_dir"])
        if isinstance(one, Fault):
            hosts.setdefault(one.node_id, one.host)
    return tuple(
        NodeMarks(node_id, hosts.get(node_id, ""), found[node_id], folders.get(node_id, ""))
        for node_id in sorted(found)
    )


def _times(
    told: Mapping[str, Any],
    nodes: tuple[NodeMarks, ...],
    interrupt: Interrupt | None,
    root: Root | None,
    verdict: End | None,
    final: Outcome | None,
) -> RoundTimes:
    seen = [node.at_utc.get(Mark.FAULT, "") for node in nodes]
    ended = root.end.ended_utc if root and root.end and root.culprit else ""
    fault = first([*seen, ended, interrupt.at_utc if interrupt else ""])
    if (
        not fault and verdict is not None
    ):  # ended by agreement: what training lost begins with the first rank's end
        fault = first(node.at_utc.get(Mark.GONE, "") for node in nodes)
    over = verdict.ended_utc if verdict else final.decided_utc if final else ""
    return RoundTimes(
        opened_utc=str(told.get("opened_utc", "")),
        running_utc=str(told.get("running_utc", "")),
        fault_utc=fault,
        ended_utc=over,
        **_latest(nodes),
    )


def _marks_in(raw: Mapping[str, Any]) -> dict[Mark, str]:
    return {mark: str(utc) for mark in Mark if (utc := raw.get(f"{mark.value}_utc")) not in (None, "")}


def _latest(nodes: tuple[NodeMarks, ...]) -> dict[str, str]:
    """When the last node was there, for all moments but the fault."""
    return {
        f"{mark.value}_utc": last(node.at_utc.get(mark, "") for node in nodes)
        for mark in Mark
        if mark is not Mark.FAULT
    }


def _digest(interrupt: Interrupt | None, reports: tuple[Fault, ...], root: Root | None) -> str:
    evidence = [*([interrupt] if interrupt else []), *reports, *([root] if root else [])]
    if not evidence:
        return ""
    return hashlib.sha256(b"\n".join(map(encode, evidence))).hexdigest()[:_DIGEST_CHARS]
