"""What people ask of a running job: the answer, and that its effect takes place exactly once."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_kit import (
    KEYS,
    SPEC,
    UTC,
    Bench,
    all_of,
    identity,
    join,
    node,
    only,
    opened,
    puts,
    sealed,
    seat,
    spec,
)

from nvrx_async.job.codec import decode, encode
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import (
    PROGRESS,
    STOP,
    Command,
    CommandPhase,
    Done,
    Ending,
    Exclusion,
    Fault,
    FaultKind,
    Interrupt,
    Level,
    Outcome,
    Phase,
    Purpose,
    Round,
    Spare,
    Stop,
    StopPhase,
    StopVote,
    Verb,
    WorldShard,
)
from nvrx_async.rounds.commands import SHOWN, STOPPED, Case, answer, commands_in, later, with_told
from nvrx_async.rounds.coordinator import AGREE_S, Coordinator
from nvrx_async.rounds.effects import Commit
from nvrx_async.rounds.events import Elected, Refused, Tick
from nvrx_async.rounds.stop_state import put_to_use, stop_as_extra, stop_in

OFFICE = KEYS.election(0xA)
SEATS = (seat("a", 0), seat("b", 1))


def command(verb, node_id=None, **changes):
    return replace(Command(verb, "ada@desk", "maintenance", UTC, node_id), **changes)


def case(waiting="", excluded="", phase=Phase.RUNNING, stop=None, of=SPEC, **changes):
    names = [*(one.node_id for one in SEATS), *waiting]
    made = Case(
        round=Round(3, phase, UTC, extra={STOP: stop_as_extra(stop)} if stop else {}),
        seats=SEATS,
        nodes={name: node(name) for name in names},
        waiting=tuple(waiting),
        exclusions={name: Exclusion(name, "broken", "bob", UTC) for name in excluded},
        interrupted=False,
        spec=of,
    )
    return replace(made, **changes)


def answered(verb, facts, node_id=None, **changes):
    return answer(command(verb, node_id, **changes), facts, UTC)


# One command ----------------------------------------------------------------------------------------------------


CANCELLED = {"ending": "cancelled"}


def test_stop_ends_the_job_at_an_agreed_step_and_says_who_asked():
    made = answered(Verb.STOP, case())
    assert made.command.phase is CommandPhase.DONE
    assert made.command.answered_utc == UTC
    assert made.stop == Stop(
        "ada@desk",
        "stopped by ada@desk: maintenance",
        purpose=Purpose.FINISH,
        extra=CANCELLED | {"exit_code": STOPPED},
    )
    assert answered(Verb.STOP, case(), extra={"requeue": True}).stop.extra == CANCELLED | {"exit_code": 75}


def test_restart_is_another_round():
    made = answered(Verb.RESTART, case())
    assert made.stop.purpose is Purpose.RENEW
    assert made.stop.reason == "restart asked by ada@desk: maintenance"
    assert "round 4 follows" in made.command.answer


@pytest.mark.parametrize(
    "facts", [case(phase=Phase.FORMING), case(interrupted=True)], ids=["forming", "over"]
)
def test_between_two_rounds_nothing_needs_to_be_stopped(facts):
    for verb in (Verb.RESTART, Verb.GROW):
        made = answered(verb, facts)
        assert (made.command.phase, made.stop) == (CommandPhase.DONE, None)
    stop = answered(Verb.STOP, facts).stop
    assert (stop.purpose, stop.phase) == (Purpose.FINISH, StopPhase.REFUSED), "no rank is there to be asked"


@pytest.mark.parametrize(
    ("facts", "phase", "words"),
    [
        (case("c", of=spec(max_nodes=3)), CommandPhase.DONE, "round 4 takes in c"),
        (case("cd", of=spec(max_nodes=3)), CommandPhase.DONE, "takes in c"),
        (case("c"), CommandPhase.REFUSED, "as many nodes as --nnodes allows: 2"),
        (case(of=spec(max_nodes=3)), CommandPhase.REFUSED, "no node waits"),
        (case("c", "c", of=spec(max_nodes=3)), CommandPhase.REFUSED, "no node waits"),
    ],
)
def test_grow_takes_in_who_waits(facts, phase, words):
    made = answered(Verb.GROW, facts)
    assert made.command.phase is phase
    assert words in made.command.answer
    assert (made.stop is not None) is (phase is CommandPhase.DONE)


@pytest.mark.parametrize(
    ("facts", "node_id", "phase", "words"),
    [
        (case("c"), "b", CommandPhase.DONE, "c takes its ranks"),
        (case(of=spec(min_nodes=1)), "b", CommandPhase.DONE, "the job goes on with 1 nodes"),
        (case(), "b", CommandPhase.REFUSED, "there would be 1 of at least 2 nodes: no node waits"),
        (case("c", "c"), "b", CommandPhase.REFUSED, "no node waits"),
        (
            case("c", nodes={"a": node("a"), "b": node("b"), "c": node("c", slots=4)}),
            "b",
            CommandPhase.REFUSED,
            "1 of",
        ),
        (case("c"), "c", CommandPhase.DONE, "c takes no seat from now on"),
        (case(), "z", CommandPhase.REFUSED, "is registered as z; there are: a, b"),
        (case(), None, CommandPhase.REFUSED, "no node is named"),
    ],
)
def test_drain_gives_the_seat_away_where_somebody_can_take_it(facts, node_id, phase, words):
    made = answered(Verb.DRAIN, facts, node_id)
    assert (made.command.phase, words in made.command.answer) == (phase, True), made.command.answer
    if phase is CommandPhase.REFUSED:
        assert (made.stop, made.exclude) == (None, None)
        return
    assert made.exclude == Exclusion(node_id, "maintenance", "ada@desk", UTC)
    assert (made.stop is not None) is (node_id == "b")


def test_an_exclusion_may_have_an_end():
    made = answered(Verb.EXCLUDE, case("c"), "c", extra={"for_s": 90})
    assert made.exclude.until_utc == "2026-01-01T00:01:30.000Z" == later(UTC, 90.0)
    assert "until 2026-01-01T00:01:30.000Z" in made.command.answer


@pytest.mark.parametrize("for_s", [8.64e17, 2**63, 1e308, float("inf"), float("nan"), -1, True, "1"])
@pytest.mark.parametrize("verb", [Verb.EXCLUDE, Verb.DRAIN])
def test_an_end_that_no_calendar_holds_is_none_and_ends_no_agent(verb, for_s):
    made = answered(verb, case("c"), "c", extra={"for_s": for_s})
    assert (made.command.phase, made.exclude.until_utc) == (CommandPhase.DONE, "")


@pytest.mark.parametrize("sign", ["x", '"', "\x00", "\U0001f600"])
def test_a_long_command_is_answered_and_holds_up_nothing(sign):
    """It would outgrow what etcd takes, and be tried again for ever."""
    extra, long = {}, sign * 130_000
    for number in range(SHOWN):
        asked = command(Verb.EXCLUDE, long, reason=long, by=long, extra={"for_s": 5, "more": long})
        made = answer(asked, case("c"), UTC)
        assert made.command.phase is CommandPhase.DONE
        assert made.command.reason.startswith(sign * 1000)
        extra = with_told(extra, str(number), made.command)
    assert len(commands_in(extra)) == SHOWN
    assert len(encode(made.command)) + len(orjson.dumps(extra)) + len(encode(made.exclude)) < 1_000_000


def test_exclude_leaves_the_running_round_alone():
    made = answered(Verb.EXCLUDE, case("c"), "b")
    assert made.stop is None
    assert "its ranks run on until round 3 ends" in made.command.answer
    assert "no such node is registered" in answered(Verb.EXCLUDE, case(), "z").command.answer
    assert "1 of at least 2 nodes" in answered(Verb.EXCLUDE, case(), "b").command.answer


def test_undrain_lets_in_again():
    assert answered(Verb.UNDRAIN, case("c", "c"), "c").readmit == "c"
    refused = answered(Verb.UNDRAIN, case("c", "c"), "b").command
    assert (refused.phase, refused.answer) == (CommandPhase.REFUSED, "b is not excluded; excluded: c")


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (Purpose.LEAVE, Purpose.RENEW, Purpose.RENEW),
        (Purpose.LEAVE, Purpose.FINISH, Purpose.FINISH),
        (Purpose.RENEW, Purpose.FINISH, Purpose.FINISH),
        (Purpose.FINISH, Purpose.RENEW, Purpose.FINISH),
        (Purpose.RENEW, Purpose.RENEW, Purpose.RENEW),
    ],
)
def test_a_stop_under_way_is_put_to_the_stronger_use_and_not_begun_anew(old, new, kept):
    under_way = Stop("n1", "leaves", StopPhase.AGREED, 8, old)
    both = put_to_use(under_way, Stop("ada", "asks", purpose=new))
    assert (both.purpose, both.phase, both.step) == (kept, StopPhase.AGREED, 8)


def test_the_round_tells_of_the_latest_commands():
    extra = {"other": 1}
    for number in range(SHOWN + 3):
        extra = with_told(extra, f"c{number}", command(Verb.GROW, answer=str(number)))
    assert list(commands_in(extra)) == [f"c{number}" for number in range(3, SHOWN + 3)]
    assert extra["other"] == 1
    assert commands_in({"commands": {"x": "no record"}}) == {}
    assert commands_in({"commands": 3}) == {}


@given(
    verb=st.sampled_from(Verb),
    node_id=st.sampled_from([None, *"abcz"]),
    waiting=st.sampled_from(["", "c", "cd"]),
    excluded=st.lists(st.sampled_from("abcd"), unique=True),
    where=st.tuples(st.sampled_from(Phase), st.booleans()),
    purpose=st.none() | st.sampled_from(Purpose),
    size=st.tuples(st.integers(1, 2), st.integers(2, 4)),
)
def test_whatever_is_asked_is_answered_and_a_refusal_changes_nothing(
    verb, node_id, waiting, excluded, where, purpose, size
):
    stop = Stop("x", "y", purpose=purpose) if purpose else None
    there = [name for name in excluded if name in "ab" + waiting]
    of = spec(min_nodes=size[0], max_nodes=size[1])
    facts = case(waiting, there, where[0], stop, of, interrupted=where[1])
    made = answered(verb, facts, node_id)
    assert made.command.phase is not CommandPhase.ASKED
    assert made.command.answer
    assert (made.command.verb, made.command.by) == (verb, "ada@desk")
    if made.command.phase is CommandPhase.REFUSED:
        assert (made.stop, made.exclude, made.readmit) == (None, None, None)
    if stop is not None and stop.purpose is Purpose.FINISH:
        assert made.stop is None or made.stop.purpose is Purpose.FINISH, "the end of a job is not taken back"


# By a coordinator -----------------------------------------------------------------------------------------------


def leader(phase=Phase.RUNNING, registered="abc", of=SPEC, number=0, keys=None, **changes):
    bench = Bench(Coordinator, identity(), of, keys)
    if keys is None:
        for name in registered:
            bench.etcd.put(KEYS.node(name), node(name), lease=1)
        if phase is Phase.RUNNING:
            sealed(bench.etcd, SEATS, number)
            changes = {"token": "t", **changes}
            for name in registered:
                if name not in "ab":
                    bench.etcd.put(KEYS.join(number + 1, name), join(name))
        opened(bench.etcd, phase, number, of, **changes)
    bench.etcd.put(OFFICE, Spare("", "a-1"), lease=1)
    bench.tell(Elected(OFFICE, bench.etcd.held[OFFICE].create_revision))
    return bench


def ask(bench, verb, node_id=None, name="1", **changes):
    bench.etcd.put(KEYS.control(name), command(verb, node_id, **changes))


def read(bench, cls, key):
    return decode(cls, key, bench.etcd.held[key].value)


def vote(bench, **steps):
    for name, step in steps.items():
        bench.etcd.put(KEYS.stop_vote(0, name), StopVote(name, f"{name}-1", step))


def all_done(bench, names="ab", number=0):
    for name in names:
        bench.etcd.put(KEYS.done(number, name), Done(name, f"{name}-1"))


def test_effect_and_answer_are_one_transaction_that_compares_the_question():
    bench = leader()
    ask(bench, Verb.DRAIN, "b")
    commit = only(bench.tell(), Commit)
    (txn,) = commit.txns
    asked = bench.etcd.held[KEYS.control("1")]
    assert any(one.key == asked.key and one.revision == asked.mod_revision for one in txn.when)
    assert set(puts(txn)) == {KEYS.control("1"), KEYS.round, KEYS.excluded("b")}


def test_of_two_coordinators_one_answers_and_the_other_changes_nothing():
    first = leader()
    ask(first, Verb.RESTART)
    late = only(first.tell(), Commit)
    first.etcd.delete(OFFICE)
    second = leader(keys=first.etcd)
    answering = only(second.last, Commit)
    second.tell(second.outcome(answering))
    held = dict(first.etcd.held)
    assert isinstance(first.outcome(late), Refused)
    assert first.etcd.held == held
    assert read(second, Command, KEYS.control("1")).phase is CommandPhase.DONE
    assert all_of(second.settle(Tick()), Commit) == [], "an answered command is not decided again"


def test_commands_are_answered_in_the_order_they_came():
    bench = leader()
    ask(bench, Verb.EXCLUDE, "c", name="z")
    ask(bench, Verb.UNDRAIN, "c", name="a")
    bench.settle(Tick())
    assert KEYS.excluded("c") not in bench.etcd.held
    assert list(commands_in(read(bench, Round, KEYS.round).extra)) == ["z", "a"]


def test_what_nobody_can_read_stops_nobody():
    bench = leader()
    bench.etcd.put(KEYS.control("0"), Spare("not", "a command"))
    bench.etcd.put(KEYS.excluded("b"), Spare("not", "an exclusion"))
    ask(bench, Verb.UNDRAIN, "c")
    bench.settle(Tick())
    assert read(bench, Command, KEYS.control("1")).phase is CommandPhase.REFUSED


def test_a_restart_waits_for_the_agreed_step_and_is_billed_to_nobody():
    bench = leader()
    ask(bench, Verb.RESTART)
    bench.settle(Tick())
    stop = stop_in(read(bench, Round, KEYS.round).extra)
    assert (stop.phase, stop.purpose) == (StopPhase.ASKED, Purpose.RENEW)
    assert KEYS.interrupt(0) not in bench.etcd.held
    vote(bench, a=5, b=6)
    bench.settle(Tick())
    assert stop_in(read(bench, Round, KEYS.round).extra).step == 7
    all_done(bench)
    bench.settle(Tick(), rounds=2)
    following = read(bench, Round, KEYS.round)
    assert (following.number, following.phase, following.ledger.restarts) == (1, Phase.FORMING, 0)
    assert following.verdict.root.kind is FaultKind.ASKED
    assert following.verdict.root.sentence == "restart asked by ada@desk: maintenance"
    assert stop_in(following.extra) is None
    assert list(commands_in(following.extra)) == ["1"]


def test_ranks_that_never_ask_are_stopped_by_an_interrupt():
    bench = leader()
    ask(bench, Verb.RESTART)
    bench.settle(Tick())
    vote(bench, a=5, b=None)
    bench.settle(Tick())
    interrupt = read(bench, Interrupt, KEYS.interrupt(0))
    assert (interrupt.kind, interrupt.reason) == (FaultKind.ASKED, "restart asked by ada@desk: maintenance")
    for name in "ab":  # what they do on their way out is not the cause
        bench.etcd.put(KEYS.fault(0, name), Fault(name, f"{name}-1", f"host-{name}", (), FaultKind.EXCEPTION))
    bench.settle(Tick(), rounds=3)
    following = read(bench, Round, KEYS.round)
    assert (following.number, following.ledger.restarts) == (1, 0)
    assert (following.verdict.level, following.verdict.root.culprit) == (Level.IN_JOB, False)


def test_an_agreed_step_that_nobody_comes_to_is_not_waited_for_without_end():
    bench = leader()
    ask(bench, Verb.RESTART)
    bench.settle(Tick())
    assert bench.tell(at_s=bench.now_s + AGREE_S - 0.1).effects == ()
    assert bench.last.wake_at_s == pytest.approx(bench.now_s + 0.1)
    bench.settle(Tick(), at_s=bench.now_s + 0.2)
    assert KEYS.interrupt(0) in bench.etcd.held


@pytest.mark.parametrize("agreed", [True, False])
def test_a_stop_is_the_jobs_end_and_the_outcome_says_who_asked(agreed):
    bench = leader()
    ask(bench, Verb.STOP)
    bench.settle(Tick())
    vote(bench, a=5, b=5 if agreed else None)
    bench.settle(Tick())
    if agreed:
        all_done(bench)
    else:
        for name in "ab":
            bench.etcd.put(KEYS.fault(0, name), Fault(name, f"{name}-1", f"host-{name}", ()))
    bench.settle(Tick())
    outcome = read(bench, Outcome, KEYS.outcome)
    assert (outcome.success, outcome.exit_code, outcome.ending) == (False, STOPPED, Ending.CANCELLED)
    assert outcome.reason == "stopped by ada@desk: maintenance"


@pytest.mark.parametrize("verb", [Verb.STOP, Verb.RESTART])
@pytest.mark.parametrize("both", [True, False])
def test_who_came_to_the_end_of_training_was_not_stopped(verb, both):
    bench = leader()
    ask(bench, verb)
    bench.settle(Tick())
    vote(bench, a=5, b=5)
    bench.settle(Tick())
    for name in "ab":
        told = {PROGRESS: {"step": 5, "finished": 1}} if both or name == "a" else {PROGRESS: {"step": 5}}
        bench.etcd.put(KEYS.done(0, name), Done(name, f"{name}-1", told))
    bench.settle(Tick())
    if both:
        outcome = read(bench, Outcome, KEYS.outcome)
        assert (outcome.success, outcome.ending) == (True, Ending.FINISHED)
    elif verb is Verb.STOP:
        assert not read(bench, Outcome, KEYS.outcome).success
    else:
        assert read(bench, Round, KEYS.round).number == 1


def test_who_finishes_before_a_step_was_agreed_has_finished():
    bench = leader()
    ask(bench, Verb.STOP)
    bench.settle(Tick())
    all_done(bench)
    bench.settle(Tick())
    assert read(bench, Outcome, KEYS.outcome).success


def test_a_forming_job_stops_at_once():
    bench = leader(Phase.FORMING, registered="a")
    ask(bench, Verb.STOP)
    bench.settle(Tick())
    assert read(bench, Outcome, KEYS.outcome).exit_code == STOPPED


def test_a_stop_in_a_forming_round_waits_until_nothing_of_the_last_one_lives():
    bench = Bench(Coordinator, identity())
    for name in "ab":
        bench.etcd.put(KEYS.node(name), node(name), lease=1)
    sealed(bench.etcd, SEATS, 0)
    opened(bench.etcd, Phase.FORMING, 1, previous_token="t")
    bench.etcd.put(OFFICE, Spare("", "a-1"), lease=1)
    bench.tell(Elected(OFFICE, bench.etcd.held[OFFICE].create_revision))
    bench.etcd.put(KEYS.join(1, "a"), join("a"))
    ask(bench, Verb.STOP)
    bench.settle(Tick())
    assert KEYS.outcome not in bench.etcd.held
    bench.etcd.put(KEYS.join(1, "b"), join("b"))
    bench.settle(Tick())
    assert read(bench, Outcome, KEYS.outcome).exit_code == STOPPED


def test_a_drained_nodes_ranks_go_to_the_spare_and_the_others_keep_theirs():
    bench = leader()
    ask(bench, Verb.DRAIN, "b")
    bench.settle(Tick())
    vote(bench, a=5, b=5)
    bench.settle(Tick())
    all_done(bench)
    bench.settle(Tick(), rounds=2)
    for name in "ab":
        bench.etcd.put(KEYS.join(1, name), join(name))
    bench.settle(Tick())
    running = read(bench, Round, KEYS.round)
    assert (running.number, running.phase) == (1, Phase.RUNNING)
    world = read(bench, WorldShard, KEYS.world(1, running.token, 0))
    assert [(one.node_id, one.first_rank) for one in world.seats] == [("a", 0), ("c", 2)]
    assert [one.node_id for one in world.spares] == ["b"], "a drained agent waits, recorded, without a seat"


def test_an_exclusion_that_ran_out_bars_nobody():
    bench = leader(Phase.FORMING, registered="ab")
    bench.etcd.put(KEYS.excluded("b"), Exclusion("b", "x", "bob", UTC, "2025-12-31T23:59:59.000Z"))
    for name in "ab":
        bench.etcd.put(KEYS.join(0, name), join(name))
    bench.settle(Tick())
    assert read(bench, Round, KEYS.round).phase is Phase.RUNNING


def test_of_an_excluded_node_the_wait_says_so():
    bench = leader(Phase.FORMING, registered="ab")
    bench.etcd.put(KEYS.excluded("b"), Exclusion("b", "x", "bob", UTC))
    for name in "ab":
        bench.etcd.put(KEYS.join(0, name), join(name))
    bench.tell()
    assert bench.last.reason == "1 of 2 nodes joined; here: a; excluded: b"


def test_the_keys_of_commands_belong_to_the_attempt():
    assert AttemptKeys.holding(KEYS.control("1")) == KEYS
