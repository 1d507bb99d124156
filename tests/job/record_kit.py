"""Keys and values of a job that restarted once: two nodes, rank 1 raised, all came back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvrx_async.job.codec import encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    MARKS,
    Current,
    Done,
    End,
    EndedBy,
    Fault,
    FaultKind,
    Interrupt,
    Job,
    JobSpec,
    Join,
    Level,
    Mark,
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

KEYS = AttemptKeys("llama", 0)
SPEC = JobSpec(("train.py",), 2, 2, 3, 6, 2.0, 120.0, 600.0, 30.0)


def at(second: float) -> str:
    """A moment of one day."""
    return f"2026-01-01T00:{int(second) // 60:02}:{second % 60:06.3f}Z"


def marks(**moments: float) -> dict[str, Any]:
    return {MARKS: {f"{Mark[name.upper()].value}_utc": at(second) for name, second in moments.items()}}


ERROR = PythonError("ValueError", "bad shard\nsecond line", "/job/train.py", 41, "load")
RAISED = RankEnd(
    1,
    1,
    101,
    FaultKind.EXCEPTION,
    EndedBy.ITSELF,
    exit_code=1,
    ready=True,
    ran_s=59.0,
    ended_utc=at(60.0),
    error=ERROR,
    last_lines=("ValueError: bad shard",),
    log="/logs/rank_1",
)


def stopped(rank: int, local_rank: int) -> RankEnd:
    return RankEnd(
        rank,
        local_rank,
        200 + rank,
        FaultKind.STOPPED_BY_US,
        EndedBy.US,
        signal=15,
        ready=True,
        ran_s=59.2,
        ended_utc=at(60.2),
    )


ROOT = Root(
    FaultKind.EXCEPTION,
    "rank 1 on host-a raised ValueError: bad shard (train.py:41)",
    "a",
    "host-a",
    end=RAISED,
)
SEATS = (Seat("a", "a-1", "host-a", 0, 0, 2), Seat("b", "b-1", "host-b", 1, 2, 2))
FIRST = Round(0, Phase.RUNNING, at(0.0), at(1.0), "t0", world_size=4, nodes=2)
END = End(0, ROOT, Level.IN_JOB, "restart 1 of --max-restarts 3", at(60.5), extra=round_as_extra(FIRST))
SECOND = Round(
    1,
    Phase.RUNNING,
    at(60.5),
    at(60.6),
    "t0",
    "t0",
    sealed_in=0,
    world_size=4,
    nodes=2,
    why=ROOT.sentence,
    verdict=END,
)


def node(name: str) -> Node:
    process = Process("boot", "pid:[1]", 7, 107, "tag")
    return Node(name, f"{name}-1", f"host-{name}", f"10.0.0.{ord(name)}", 2, process, at(0.0))


def restarted(*, finished: bool = True) -> dict[str, bytes]:
    """Round 0 failed; round 1 runs, or has `finished` on both nodes."""
    return {key: encode(record) for key, record in _records(finished=finished)}


def _records(*, finished: bool) -> Iterator[tuple[str, Any]]:
    yield current("llama"), Current(0, at(0.0))
    yield KEYS.job, Job(SPEC, None, at(0.0))
    yield KEYS.round, SECOND
    for name in "ab":
        yield KEYS.node(name), node(name)
    yield KEYS.world(0, "t0", 0), WorldShard(0, 1, SEATS, ())
    yield KEYS.world(0, "deposed", 0), WorldShard(0, 1, SEATS[:1], ())
    yield KEYS.interrupt(0), Interrupt("a", FaultKind.EXCEPTION, "a", ROOT.sentence, at(60.02), 1)
    yield (
        KEYS.fault(0, "a"),
        Fault(
            "a",
            "a-1",
            "host-a",
            (stopped(0, 0), RAISED),
            extra=marks(
                released=1.0, started=1.1, fault=60.01, told=60.05, stopping=60.05, gone=60.3, reported=60.3
            ),
        ),
    )
    yield (
        KEYS.fault(0, "b"),
        Fault(
            "b",
            "b-1",
            "host-b",
            (stopped(2, 0), stopped(3, 1)),
            extra=marks(released=1.0, started=1.1, told=60.06, stopping=60.06, gone=60.4, reported=60.45),
        ),
    )
    yield KEYS.end(0), END
    yield KEYS.join(1, "a"), Join("a", "a-1", "10.0.0.1", 29500, marks(joined=60.3))
    if finished:
        late = {"started": 60.8, "hello": 63.0, "first_step": 64.0, "gone": 90.0, "reported": 90.0}
        yield KEYS.done(1, "a"), Done("a", "a-1", marks(released=60.7, **late))
        yield KEYS.done(1, "b"), Done("b", "b-1", marks(released=60.65, **{**late, "first_step": 63.5}))
