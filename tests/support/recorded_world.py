"""The recorded state of a large job: a round of many ranks that one of them ended, and the one that followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvrx_async.etcd import EtcdClient
from nvrx_async.etcd.types import Put, Txn
from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    MARKS,
    Current,
    End,
    EndedBy,
    Fault,
    FaultKind,
    Interrupt,
    Job,
    JobSpec,
    Level,
    Node,
    Phase,
    Process,
    PythonError,
    RankEnd,
    Root,
    Round,
    Seat,
    WorldShard,
)
from nvrx_async.job.round_record import round_as_extra

SLOTS = 8
CULPRIT = 4711
_VICTIMS = 40
_AT_ONCE = 50


def _at(second: float) -> str:
    return f"2026-01-01T00:{int(second) // 60:02}:{second % 60:06.3f}Z"


async def write_world(client: EtcdClient, run_id: str, nodes: int) -> None:
    """Write a job of `nodes` nodes with 8 ranks each."""
    batch: list[Put] = []
    for key, record in _records(AttemptKeys(run_id, 0), nodes):
        batch.append(Put(key, encode(record)))
        if len(batch) == _AT_ONCE:
            await client.commit(Txn((), tuple(batch)))
            batch = []
    await client.commit(Txn((), tuple(batch)))


def _records(keys: AttemptKeys, nodes: int) -> Iterator[tuple[str, Any]]:
    seats = tuple(Seat(_name(n), f"{n:012x}", _name(n), n, n * SLOTS, SLOTS) for n in range(nodes))
    sentence = f"rank {CULPRIT} on {_name(CULPRIT // SLOTS)} raised RuntimeError: CUDA error: an illegal memory access"
    root = Root(
        FaultKind.EXCEPTION, sentence, _name(CULPRIT // SLOTS), _name(CULPRIT // SLOTS), end=_end(CULPRIT)
    )
    ran = Round(0, Phase.RUNNING, _at(0), _at(1), "t0", world_size=nodes * SLOTS, nodes=nodes)
    verdict = End(0, root, Level.IN_JOB, "restart 1 of --max-restarts 3", _at(62), extra=round_as_extra(ran))
    runs = Round(
        1,
        Phase.RUNNING,
        _at(62),
        _at(63),
        "t0",
        "t0",
        sealed_in=0,
        world_size=nodes * SLOTS,
        nodes=nodes,
        verdict=verdict,
    )
    yield current(keys.run_id), Current(0, _at(0))
    yield keys.job, Job(JobSpec(("train.py",), nodes, nodes, 3, 6, 2.0, 0.0, 600.0, 30.0), None, _at(0))
    yield (
        keys.interrupt(0),
        Interrupt(root.node_id or "", root.kind, root.node_id or "", sentence, _at(60), CULPRIT),
    )
    yield keys.end(0), verdict
    yield keys.world(0, "t0", 0), WorldShard(0, 1, seats, ())
    for seat in seats:
        process = Process("boot", "pid:[1]", 7, 107, "tag")
        yield (
            keys.node(seat.node_id),
            Node(
                seat.node_id,
                seat.incarnation,
                seat.host,
                f"10.0.{seat.group_rank // 250}.{seat.group_rank % 250}",
                SLOTS,
                process,
                _at(0),
            ),
        )
        ends = tuple(_end(rank) for rank in range(seat.first_rank, seat.first_rank + SLOTS))
        marks = {
            "told_utc": _at(60.1),
            "stopping_utc": _at(60.1),
            "gone_utc": _at(61),
            "reported_utc": _at(61.5),
        }
        yield (
            keys.fault(0, seat.node_id),
            Fault(seat.node_id, seat.incarnation, seat.host, ends, extra={MARKS: marks}),
        )
    yield keys.round, runs


def _name(number: int) -> str:
    return f"gpu-node-{number:04}"


def _end(rank: int) -> RankEnd:
    log = f"/logs/llama/attempt_0/round_0/rank_{rank}"
    local = rank % SLOTS
    if rank == CULPRIT:
        error = PythonError(
            "RuntimeError", "CUDA error: an illegal memory access\nmore", "/job/train.py", 41, "step"
        )
        lines = ("Traceback (most recent call last):", "RuntimeError: CUDA error: an illegal memory access")
        return RankEnd(
            rank,
            local,
            100,
            FaultKind.EXCEPTION,
            EndedBy.ITSELF,
            1,
            None,
            True,
            59.0,
            _at(60),
            error,
            lines,
            log,
        )
    if CULPRIT < rank <= CULPRIT + _VICTIMS:
        error = PythonError("RuntimeError", "Connection closed by peer [10.0.2.88]:29500")
        return RankEnd(
            rank,
            local,
            100,
            FaultKind.CONNECTION_LOST,
            EndedBy.ITSELF,
            1,
            None,
            True,
            59.0,
            _at(60.1),
            error,
            (),
            log,
        )
    return RankEnd(
        rank,
        local,
        100,
        FaultKind.STOPPED_BY_US,
        EndedBy.US,
        None,
        15,
        True,
        59.0,
        _at(60.5),
        None,
        ("stopped",),
        log,
    )
