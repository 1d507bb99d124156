"""A job told by its own log folder."""

from dataclasses import replace

from record_kit import END, KEYS, RAISED, SEATS, SPEC, at, node, restarted, stopped

from nvrx_async.job.codec import decode, encode
from nvrx_async.job.history import past
from nvrx_async.job.job_events import EventKind
from nvrx_async.job.keys import Told, told_by
from nvrx_async.job.records import (
    Assignment,
    End,
    Fault,
    FaultKind,
    Ledger,
    Level,
    Outcome,
    Phase,
    Root,
    Round,
)
from nvrx_async.job.round_record import round_record
from nvrx_async.job.status import JobState
from nvrx_async.job.waterfall import waterfall
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


def test_how_a_job_stood_whose_etcd_is_gone():
    found = past("llama", [line("registered", node("a"), attempt=0), line("spec", SPEC), *lines()[1:]])
    status = found.status
    assert (status.state, status.round, status.world_size) == (JobState.FAILED, 0, 4)
    assert (status.command, status.max_restarts, status.restarts) == (SPEC.command, SPEC.max_restarts, 1)
    assert status.last_fault.sentence == END.root.sentence
    assert {rank.rank: rank.state for rank in status.ranks}[1] == "exception"
    assert status.nodes == ()


def test_one_node_alone_knows_how_many_there_were():
    found = past("llama", [line("registered", node("a"), attempt=0), line("spec", SPEC), *lines()[1:-1]])
    assert found.rounds[0].node_count == 2
    assert found.status.nodes_present == 2
    running = [one for one in past("llama", told_lines()).events if one.kind is EventKind.RUNNING]
    assert [one.sentence for one in running] == [f"round {n} runs: 4 ranks on 2 nodes" for n in (0, 1)]


def test_a_fault_that_was_billed_to_nobody_is_no_restart_spent():
    second = Round(1, Phase.RUNNING, at(61.0), at(61.5), "t1", ledger=Ledger(start_failures=1))
    found = past("llama", [*lines()[:-1], line("round", second, attempt=0)])
    assert (found.status.restarts, found.status.lost_nodes) == (0, 0)
    assert found.status.last_fault.sentence == END.root.sentence


def test_an_asked_restart_hides_no_fault():
    asked = End(1, Root(FaultKind.ASKED, "restart asked by ada@desk"), Level.IN_JOB, "asked for", at(70))
    status = past("llama", [*lines()[:-1], line("end", asked)]).status
    assert (status.last_fault.round, status.last_asked.round) == (0, 1)
    assert status.restarts == 1


def test_a_history_without_an_end_does_not_say_how_the_job_stands_now():
    status = past("llama", lines()[:-1]).status
    assert status.state is JobState.UNKNOWN
    assert not status.state.is_over
    assert status.since_utc == END.ended_utc
    assert [one.node_id for one in status.nodes] == ["a"]
    seated = Assignment(1, SEATS[0], 4, 2, "10.0.0.1", 29500)
    rounds = past("llama", [*lines()[:-1], line("assignment", seated)]).rounds
    assert [record.phase for record in rounds] == [Phase.ENDED, Phase.RUNNING]
    assert past("llama", []).status.state is JobState.UNKNOWN


def test_nodes_that_share_a_folder_keep_their_own_ranks():
    other = Assignment(0, SEATS[1], 4, 2, "10.0.0.1", 29500)
    found = past("llama", [*lines(), line("assignment", other), line("rank_end", stopped(2, 0), round=0)])
    (record,) = found.rounds
    assert [seat.node_id for seat in record.seats] == ["a", "b"]
    assert {report.node_id: [end.rank for end in report.ends] for report in record.reports} == {
        "a": [0, 1],
        "b": [2],
    }
    assert [(node_id, host, end.rank) for node_id, host, end in record.ends][-1] == ("b", SEATS[1].host, 2)


def told_lines(*, own: str = "a") -> list[bytes]:
    """The history of the node whose agent led, of the job that `record_kit` holds in etcd."""
    found = [line("registered", node(own), attempt=0)]
    for number, seats in ((0, SEATS), (1, SEATS)):
        seated = next(seat for seat in seats if seat.node_id == own)
        found.append(line("assignment", Assignment(number, seated, 4, 2, "10.0.0.1", 29500)))
    for key, held in restarted().items():
        told = told_by("llama", key)
        if told is None:
            continue
        attempt, kind, number = told
        about = {"attempt": attempt} | ({} if number is None else {"round": number})
        of_this_node = kind is Told.REPORT and key == KEYS.fault(0, own)
        value = encode(replace(decode(Fault, key, held), ends=())) if of_this_node else held
        extra = "".join(f'"{name}":{number},' for name, number in about.items())
        found.append(f'{{"record":"{kind.value}",{extra}'.encode() + value[1:] + b"\n")
    found += [line("rank_end", stopped(0, 0), round=0), line("rank_end", RAISED, round=0), line("end", END)]
    first = Round(0, Phase.RUNNING, at(0.0), at(1.0), "t0", world_size=4, nodes=2)
    found.append(line("round", first, attempt=0))
    outcome = Outcome(success=True, exit_code=0, reason="all ranks finished", round=1, decided_utc=at(90.1))
    return [*found, line("outcome", outcome)]


def test_a_restart_has_the_same_steps_as_etcd_tells_of():
    found = past("llama", told_lines())
    first, second = found.rounds
    of_etcd = [round_record(KEYS, number, restarted()) for number in (0, 1)]
    ours, theirs = waterfall(first, second), waterfall(*of_etcd)
    assert ours == theirs
    assert ours.covered == 1.0
    assert (first.times, first.nodes, first.interrupt) == (
        of_etcd[0].times,
        of_etcd[0].nodes,
        of_etcd[0].interrupt,
    )
    assert second.times.first_step_utc == at(64.0)
    assert (second.why, second.done) == (END.root.sentence, ("a", "b"))
    assert [end.rank for _, _, end in first.ends] == [0, 1, 2, 3]
    assert found.unread == 0


def test_moments_that_stand_there_twice_count_once():
    once = told_lines()
    twice = [once[0], *(one for one in once[1:] for _ in range(2))]
    assert past("llama", twice).rounds == past("llama", once).rounds
    assert past("llama", twice).events == past("llama", once).events


def test_moments_of_another_attempt_are_not_those_of_this_one():
    late = [one for one in told_lines() if b'"report"' in one or b'"done"' in one]
    found = past("llama", [line("registered", node("a"), attempt=1), *late])
    assert found.rounds == ()
    assert found.unread == 0
