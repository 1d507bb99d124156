"""A job told by its own log folder."""

from record_kit import END, RAISED, SEATS, at, node, stopped

from nvrx_async.job.codec import encode
from nvrx_async.job.history import past
from nvrx_async.job.job_events import EventKind
from nvrx_async.job.records import Assignment, Outcome
from nvrx_async.job.why import explain


def line(kind: str, record, **also) -> bytes:
    extra = "".join(f'"{name}":{value},' for name, value in also.items())
    return f'{{"record":"{kind}",{extra}'.encode() + encode(record)[1:] + b"\n"


def lines(attempt: int = 0) -> list[bytes]:
    seated = Assignment(0, SEATS[0], 4, 2, "10.0.0.1", 29500)
    outcome = Outcome(
        success=False, exit_code=1, reason="spent", round=0, decided_utc=at(60.5), root=END.root
    )
    return [
        line("registered", node("a"), attempt=attempt),
        line("assignment", seated),
        line("rank_end", stopped(0, 0), round=0),
        line("rank_end", RAISED, round=0),
        line("end", END),
        line("outcome", outcome),
    ]


def test_a_job_whose_etcd_is_gone_is_explained():
    found = past("llama", lines())
    (record,) = found.rounds
    why = explain(record)
    assert why.root.end.rank == 1
    assert why.error_line == "ValueError: bad shard"
    assert why.decision == "restart 1 of --max-restarts 3"
    assert [one.rank for one in why.consequences] == [0]
    assert found.events[-1].kind is EventKind.OUTCOME
    assert found.unread == 0


def test_the_last_attempt_is_told_and_nothing_of_the_ones_before():
    found = past("llama", [*lines(0), line("registered", node("a"), attempt=1)])
    assert (found.attempt, found.rounds, found.outcome) == (1, (), None)


def test_a_line_that_a_crash_cut_short_is_passed_over():
    found = past("llama", [*lines()[:-1], b'{"record":"outco'])
    assert (found.unread, len(found.rounds)) == (1, 1)
