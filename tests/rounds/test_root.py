"""What a round's end is blamed on."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrx_async.faults import EndFacts, classify
from nvrx_async.faults.culprit import HANG, RankState, as_extra
from nvrx_async.job.records import EndedBy, Fault, FaultKind, Interrupt, PythonError, RankEnd, Seat
from nvrx_async.rounds.root import find_root

K = FaultKind
VICTIMS = {K.CONNECTION_LOST, K.STOPPED_BY_US, K.TIMEOUT}
SEATS = tuple(Seat(f"node-{name}", f"i-{name}", f"host-{name}", n, 2 * n, 2) for n, name in enumerate("abc"))
LOST = PythonError(
    "RuntimeError", "[gloo/x/pair.cc:553] Connection closed by peer [10.0.0.2]:2242. This is", "t.py", 9
)
OWN = PythonError("ValueError", "bad shard\nmore", "/home/user/train.py", 41, "main")
LATE = PythonError("RuntimeError", "[gloo/x.cc:78] Timed out waiting 2000ms for recv operation", "t.py", 9)
MISSED = PythonError("RuntimeError", "[Rank 0]: Rank 3 failed to pass monitoredBarrier in 2000 ms", "t.py", 9)


def end(rank, error=None, *, code=None, number=None, by=EndedBy.ITSELF, at="2026-01-01T00:00:05Z", **more):
    """An end as the member writes it: classified from its facts."""
    if number is None and code is None and error is not None:
        code = 1
    facts = EndFacts(
        code, number, by, oom_kill=more.pop("oom_kill", False), stderr_tail=more.pop("stderr", "")
    )
    found = classify(facts, error)
    return RankEnd(
        rank,
        rank % 2,
        1000 + rank,
        found.kind,
        by,
        code,
        number,
        ended_utc=at,
        error=error,
        detail=found.detail,
        **more,
    )


def stopped(rank, **more):
    return end(rank, number=9, by=EndedBy.US, **more)


def lost(rank, **more):
    return end(rank, LOST, **more)


def fault(name, *ends, kind=None, detail=""):
    return Fault(f"node-{name}", f"i-{name}", f"host-{name}", ends, kind, detail)


def report(*faults):
    return {one.node_id: one for one in faults}


def interrupt(kind, name="a", rank=None, reason=""):
    return Interrupt("i-x", kind, f"node-{name}", reason, "2026-01-01T00:00:00Z", rank)


CASES = [
    (
        "own exception beats the victims that exited first",
        report(
            fault("a", lost(0, at="2026-01-01T00:00:01Z"), stopped(1)), fault("b", stopped(2), end(3, OWN))
        ),
        {},
        K.EXCEPTION,
        "rank 3 on node-b (host host-b) raised ValueError: bad shard (train.py:41)",
    ),
    (
        "killed from outside",
        report(fault("a", end(1, number=9, by=EndedBy.SOMEONE_ELSE), lost(0))),
        {},
        K.SIGNAL,
        "rank 1 on node-a (host host-a) was killed by SIGKILL by someone else",
    ),
    (
        "segfault",
        report(fault("a", end(1, number=11), lost(0))),
        {},
        K.SIGNAL,
        "rank 1 on node-a (host host-a) was killed by SIGSEGV",
    ),
    (
        "out of memory",
        report(fault("a", end(1, number=9, by=EndedBy.SOMEONE_ELSE, oom_kill=True), lost(0))),
        {},
        K.OUT_OF_MEMORY,
        "rank 1 on node-a (host host-a) was killed by the kernel, out of memory",
    ),
    (
        "a hardware line on one rank outranks exceptions and time-outs of all others",
        report(
            fault("a", end(0, LATE), end(1, OWN)),
            fault("b", end(2, LATE), end(3, LATE, stderr="NVRM: Xid (PCI:0:1): 48, DBE")),
        ),
        {},
        K.HARDWARE,
        "rank 3 on node-b (host host-b) met a hardware fault: NVRM: Xid (PCI:0:1): 48, DBE",
    ),
    (
        "exit code with what it said",
        report(fault("a", end(0, code=3, last_lines=("x", "no data")), lost(1))),
        {},
        K.EXIT_CODE,
        "rank 0 on node-a (host host-a) exited with code 3: no data",
    ),
    (
        "storage",
        report(
            fault(
                "a", end(0, PythonError("OSError", "[Errno 28] No space left on device", "t.py", 3)), lost(1)
            )
        ),
        {},
        K.STORAGE,
        "rank 0 on node-a (host host-a) failed on storage: OSError: [Errno 28] No space left on device (t.py:3)",
    ),
    (
        "a lost node explains the lost connections",
        report(fault("a", lost(0), stopped(1))),
        {"node-b": "its lease ended"},
        K.NODE_LOST,
        "node node-b (host host-b) lost: its lease ended",
    ),
    (
        "an own exception outranks a lost node",
        report(fault("a", end(0, OWN), stopped(1))),
        {"node-b": "its lease ended"},
        K.EXCEPTION,
        "rank 0 on node-a (host host-a) raised ValueError: bad shard (train.py:41)",
    ),
    (
        "the keeper's loss explains its ranks' deaths",
        report(
            fault("a", lost(0), lost(1)),
            fault(
                "b", end(2, number=9, by=EndedBy.SOMEONE_ELSE), kind=K.KEEPER_LOST, detail="killed by SIGKILL"
            ),
        ),
        {},
        K.KEEPER_LOST,
        "node node-b (host host-b) lost the keeper of its ranks: killed by SIGKILL",
    ),
    (
        "fenced",
        report(fault("a", lost(0)), fault("b", stopped(2), stopped(3), kind=K.FENCED)),
        {},
        K.FENCED,
        "node node-b (host host-b) stopped its ranks, since it could not renew its lease in time",
    ),
    (
        "ranks could not be started",
        report(fault("a", end(0), stopped(1))),
        {},
        K.START_FAILED,
        "rank 0 on node-a (host host-a) could not be started: its process could not be created",
    ),
    (
        "the one who did not come is to blame, not the one who waited",
        report(fault("a", end(0, MISSED), stopped(1)), fault("b", stopped(2), stopped(3))),
        {},
        K.COLLECTIVE_MISSED,
        (
            "rank 3 on node-b (host host-b) did not enter a collective in which "
            "rank 0 on node-a (host host-a) waited for it"
        ),
    ),
    (
        "the one who did not come never reported",
        report(fault("a", end(0, MISSED), stopped(1))),
        {},
        K.COLLECTIVE_MISSED,
        (
            "rank 3 on node-b (host host-b) did not enter a collective in which "
            "rank 0 on node-a (host host-a) waited for it"
        ),
    ),
    (
        "early exit",
        report(fault("a", lost(0), stopped(1)), fault("b", end(2, code=0), stopped(3))),
        {},
        K.EARLY_EXIT,
        "rank 2 on node-b (host host-b) exited with 0 while other ranks still ran, and they lost its connection",
    ),
]


@pytest.mark.parametrize(
    ("name", "faults", "missing", "kind", "sentence"), CASES, ids=[case[0] for case in CASES]
)
def test_root(name, faults, missing, kind, sentence):
    root = find_root(faults, missing, None, SEATS)

    assert (root.kind, root.sentence) == (kind, sentence)
    assert root.culprit
    assert root.node_id
    assert root.host in sentence


def test_ties_go_to_the_earliest_then_to_the_lowest_rank():
    late, early = end(0, OWN, at="2026-01-01T00:00:09Z"), end(5, OWN, at="2026-01-01T00:00:01Z")

    assert find_root(report(fault("a", late), fault("c", early)), {}, None, SEATS).end.rank == 5
    assert find_root(report(fault("a", end(1, OWN)), fault("c", end(5, OWN))), {}, None, SEATS).end.rank == 1


def test_fingerprint_is_the_errors():
    root = find_root(report(fault("a", end(0, OWN))), {}, None, SEATS)
    assert root.fingerprint == "ValueError: bad shard at /home/user/train.py:41"

    assert find_root(report(fault("a", end(0, number=11))), {}, None, SEATS).fingerprint is None


def test_only_lost_connections_blame_nobody_and_name_the_pair():
    root = find_root(
        report(fault("a", lost(0)), fault("b", lost(2))), {}, None, SEATS, addresses={"node-b": "10.0.0.2"}
    )

    assert (root.kind, root.culprit, root.end.rank) == (K.CONNECTION_LOST, False, 0)
    assert root.sentence == (
        "network: rank 0 on node-a (host host-a) lost its connection to node-b (host host-b) at "
        "10.0.0.2:2242, and no rank shows a cause"
    )
    assert "10.0.0.2:2242" in find_root(report(fault("a", lost(0))), {}, None, SEATS).sentence


def test_a_rank_that_closed_its_group_and_was_stopped_is_the_lead():
    # It hit the bug, closed its group, and would have died of it seconds later.
    silent = stopped(1, last_lines=("step 4", "ROOT CAUSE: bad data shard 17"))

    root = find_root(report(fault("a", lost(0), silent)), {}, interrupt(K.CONNECTION_LOST, rank=0), SEATS)

    assert (root.kind, root.culprit, root.end.rank) == (K.CONNECTION_LOST, False, 0)
    assert "look first at rank 1 on node-a (host host-a)" in root.sentence
    assert "step 4 | ROOT CAUSE: bad data shard 17" in root.sentence


def test_the_lead_is_sought_at_the_peer_that_the_message_names():
    faults = report(
        fault("a", lost(0), stopped(1, last_lines=("noise",))),
        fault("b", stopped(2), lost(3)),
        fault("c", stopped(4)),
    )

    root = find_root(faults, {}, None, SEATS, addresses={"node-b": "10.0.0.2"})

    assert "look first at rank 2 on node-b (host host-b)" in root.sentence
    assert "it wrote nothing to stderr" in root.sentence


def test_among_many_silent_ranks_none_is_guessed():
    faults = report(fault("a", lost(0), stopped(1)), fault("b", stopped(2), stopped(3)))

    assert "look first" not in find_root(faults, {}, None, SEATS).sentence


def test_a_time_out_alone_blames_nobody_but_names_the_silent_rank():
    root = find_root(report(fault("a", end(0, LATE), stopped(1))), {}, None, SEATS)

    assert (root.kind, root.culprit) == (K.TIMEOUT, False)
    assert "rank 0 on node-a (host host-a) waited in vain" in root.sentence
    assert "look first at rank 1 on node-a (host host-a)" in root.sentence


def test_an_early_exit_explains_a_time_out():
    root = find_root(report(fault("a", end(0, LATE), end(1, code=0))), {}, None, SEATS)

    assert (root.kind, root.end.rank, root.culprit) == (K.EARLY_EXIT, 1, True)


def test_nodes_that_are_done_left_early_if_others_lost_them():
    root = find_root(report(fault("a", lost(0), stopped(1))), {}, None, SEATS, done=("node-c",))

    assert (root.kind, root.node_id) == (K.EARLY_EXIT, "node-c")
    assert root.sentence.startswith("ranks 4, 5 on node-c (host host-c) exited with 0")


def test_ending_well_is_no_fault_of_its_own():
    faults = report(fault("a", end(0, code=0), end(1, OWN)))

    assert find_root(faults, {}, None, SEATS).kind is K.EXCEPTION


def test_a_node_that_left_by_its_own_word_left():
    said = interrupt(K.NODE_LEFT, "b", reason="node node-b (host host-b) left: SIGTERM")

    root = find_root(report(fault("a", lost(0))), {"node-b": "its key is gone"}, said, SEATS)

    assert (root.kind, root.node_id) == (K.NODE_LEFT, "node-b")


def test_what_the_interrupt_says_counts_if_its_author_died():
    said = interrupt(K.EXCEPTION, "b", rank=3, reason="rank 3 on node-b (host host-b) raised ValueError: x")

    root = find_root(report(fault("a", lost(0))), {"node-b": "its lease ended"}, said, SEATS)

    assert (root.kind, root.sentence) == (K.EXCEPTION, "rank 3 on node-b (host host-b) raised ValueError: x")


def test_a_final_report_corrects_the_interrupt():
    said = interrupt(K.EXIT_CODE, "a", rank=0, reason="rank 0 on node-a (host host-a) exited with code 1")

    root = find_root(report(fault("a", lost(0)), fault("b", end(3, OWN))), {}, said, SEATS)
    assert root.end.rank == 3

    assert find_root(report(fault("a", lost(0))), {}, said, SEATS).kind is K.CONNECTION_LOST


def test_a_verdict_of_the_hang_monitor_outlives_our_own_kill():
    said = interrupt(
        K.COLLECTIVE_MISSED, "b", rank=2, reason="rank 2 on node-b (host host-b) made no step for 60 s"
    )

    root = find_root(report(fault("a", stopped(0), lost(1)), fault("b", stopped(2))), {}, said, SEATS)

    assert (root.kind, root.node_id, root.culprit) == (K.COLLECTIVE_MISSED, "node-b", True)
    assert root.sentence == "rank 2 on node-b (host host-b) made no step for 60 s"


@pytest.mark.parametrize("said", [None, interrupt(K.STOPPED_BY_US, reason="a person asked for it")])
def test_without_any_evidence_there_is_still_a_sentence(said):
    for faults in ({}, report(fault("a", stopped(0), stopped(1)))):
        root = find_root(faults, {}, said, SEATS)
        assert root.sentence
        assert not root.culprit
        assert not said or root.sentence == "a person asked for it"


def test_ranks_are_listed_in_their_order_however_reports_arrive():
    faults = report(fault("b", stopped(3), stopped(2)), fault("a", stopped(0)))

    assert find_root(faults, {}, None, SEATS).sentence.startswith("ranks 0, 2, 3 stopped by us")


def test_waiting_for_each_other_blames_nobody():
    each = PythonError("RuntimeError", "Rank 1 failed to pass monitoredBarrier in 5 ms", "t.py", 1)
    other = PythonError("RuntimeError", "Rank 0 failed to pass monitoredBarrier in 5 ms", "t.py", 1)

    root = find_root(report(fault("a", end(0, each), end(1, other))), {}, None, SEATS)

    assert (root.kind, root.culprit) == (K.COLLECTIVE_MISSED, False)
    assert "waited in vain" in root.sentence


STATUS = st.sampled_from(
    [
        {"code": 0},
        {"code": 3},
        {"error": OWN},
        {"error": LOST},
        {"error": LATE},
        {"error": MISSED},
        {"error": PythonError("OSError", "[Errno 5] Input/output error", "t.py", 1)},
        {"number": 11},
        {"number": 9, "by": EndedBy.SOMEONE_ELSE},
        {"number": 9, "by": EndedBy.US},
        {"number": 9, "by": EndedBy.US, "last_lines": ("bye",)},
        {"number": 9, "by": EndedBy.US, "error": OWN},
        {"error": OWN, "stderr": "GPU is lost"},
        {},
    ]
)
TIMES = st.sampled_from(["", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"])


@st.composite
def rounds(draw):
    faults = {}
    for seat in draw(st.lists(st.sampled_from(SEATS), unique=True)):
        ends = tuple(
            end(seat.first_rank + place, at=draw(TIMES), **draw(STATUS))
            for place in range(draw(st.integers(0, 2)))
        )
        kind = draw(st.sampled_from([None, None, *FaultKind]))
        faults[seat.node_id] = Fault(
            seat.node_id, seat.incarnation, seat.host, ends, kind, draw(st.sampled_from(["", "why"]))
        )
    missing = {
        seat.node_id: "its lease ended"
        for seat in SEATS
        if seat.node_id not in faults and draw(st.booleans())
    }
    said = draw(
        st.none()
        | st.builds(
            Interrupt,
            st.just("i"),
            st.sampled_from(FaultKind),
            st.sampled_from([seat.node_id for seat in SEATS] + ["node-z"]),
            st.sampled_from(["", "because"]),
            st.just(""),
            st.none() | st.integers(0, 5),
        )
    )
    return faults, missing, said


@settings(max_examples=300, deadline=None)
@given(case=rounds())
def test_no_victim_is_blamed_and_there_is_always_a_sentence(case):
    faults, missing, said = case

    root = find_root(faults, missing, said, SEATS)

    assert root.sentence
    assert not (root.culprit and root.kind in VICTIMS)
    ends = [one for report in faults.values() for one in report.ends]
    own = [one for one in ends if one.kind not in VICTIMS | {None, K.COLLECTIVE_MISSED, K.SIGNAL}]
    if own or missing:
        assert root.culprit
    if own:
        order = list(FaultKind)
        assert order.index(root.kind) <= min(order.index(one.kind) for one in own)
    if root.culprit and root.end and root.kind is not K.COLLECTIVE_MISSED:
        assert root.end.kind not in VICTIMS


@settings(max_examples=150, deadline=None)
@given(case=rounds(), random=st.randoms(use_true_random=False))
def test_the_order_in_which_reports_arrive_does_not_matter(case, random):
    faults, missing, said = case

    def shuffled(mapping):
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    seats = list(SEATS)
    random.shuffle(seats)
    assert find_root(shuffled(faults), shuffled(missing), said, seats) == find_root(
        faults, missing, said, SEATS
    )


def hung(rank, *, done=False, code=None):
    """A rank as a hang found it: at a line of its own script; with a code one that had ended by then."""
    state = RankState(
        rank,
        hung=code is None,
        hello=True,
        done=done,
        ended=code is not None,
        step=20,
        silent_s=3.0,
        state="S",
    )
    told = {HANG: as_extra(state)}
    if code is not None:
        return end(rank, code=code, extra=told)
    return replace(stopped(rank, extra=told), kind=K.HANG)


def test_who_left_without_a_word_is_why_the_others_hang():
    root = find_root(
        report(fault("a", hung(0), hung(1)), fault("b", hung(2), hung(3, code=0))), {}, None, SEATS
    )

    assert (root.kind, root.end.rank, root.culprit) == (K.EARLY_EXIT, 3, True)
    assert root.sentence == (
        "rank 3 on node-b (host host-b) exited with 0 without saying that training is over, "
        "and the others make no progress without it, last at step 20"
    )


def test_who_said_that_training_is_over_is_not_blamed_for_a_hang():
    ends = hung(0), hung(1)
    root = find_root(
        report(fault("a", *ends), fault("b", hung(2), hung(3, done=True, code=0))), {}, None, SEATS
    )

    assert (root.kind, root.culprit) == (K.HANG, False)
    assert "none stands out" in root.sentence


def fingerprint_of(rank, size):
    return (
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=40, OpType=ALLREDUCE, "
        f"TensorShape=[{size}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default)))"
    )


def mismatch(rank, size, other, other_size):
    """As torch 2.13 says it with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    message = f"Detected mismatch between collectives on ranks. {fingerprint_of(rank, size)}, but "
    return PythonError(
        "RuntimeError", message + fingerprint_of(other, other_size) + ".Collectives differ", "t.py", 9
    )


SHAPE = PythonError(
    "gloo::EnforceNotMet",
    "[enforce fail at x/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data size "
    "doesn't match expected size. Is there a distributed collective mismatch in your code?",
)


def at_line(error, line):
    return replace(error, line=line)


def test_who_left_out_a_collective_is_named_by_what_torch_says_of_each():
    ends = (end(0, mismatch(0, 4, 1, 8)), end(1, mismatch(1, 8, 0, 4)), end(2, mismatch(2, 4, 1, 8)))
    root = find_root(report(fault("a", *ends[:2]), fault("b", ends[2], stopped(3))), {}, None, SEATS)
    assert (root.kind, root.culprit, root.end.rank) == (K.COLLECTIVE_MISSED, True, 1)
    assert root.sentence == (
        "rank 1 on node-a (host host-a) was in another collective than all others: ALLREDUCE of [8] Float, number 40, "
        "the others at ALLREDUCE of [4] Float, number 40; it left one out, or made one more"
    )
    assert root.fingerprint, "the same mistake at the same place comes again"


@pytest.mark.parametrize(
    ("lines", "aborted", "culprit"), [((9, 9, 11), 3, 2), ((9, 9, 9), 3, 3), ((9, 11, 12), 3, None)]
)
def test_who_left_out_a_collective_is_named_by_where_the_others_waited(lines, aborted, culprit):
    waited = [end(rank, at_line(LOST, line)) for rank, line in enumerate(lines)]
    abort = end(aborted, SHAPE, number=6)
    root = find_root(report(fault("a", *waited[:2]), fault("b", waited[2], abort)), {}, None, SEATS)
    assert root.kind is K.COLLECTIVE_MISSED
    assert (root.end.rank, root.culprit) == ((culprit, True) if culprit is not None else (aborted, False))
    if culprit is None:
        assert "rank 3 on node-b (host host-b) met another one than its own (8 vs 4 bytes)" in root.sentence
    elif culprit == 2:
        assert "in another collective than all others: t.py:11, the others at t.py:9" in root.sentence


def test_of_two_ranks_nobody_can_say_which_one_left_out_a_collective():
    root = find_root(report(fault("a", end(0, SHAPE, number=6), lost(1))), {}, None, SEATS[:1])
    assert (root.kind, root.culprit) == (K.COLLECTIVE_MISSED, False)
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in root.sentence


def test_an_own_exception_is_stronger_than_a_mismatch_that_others_saw():
    root = find_root(report(fault("a", end(0, SHAPE, number=6), end(1, OWN))), {}, None, SEATS[:1])
    assert (root.kind, root.end.rank) == (K.EXCEPTION, 1)


def test_of_those_that_all_waited_in_vain_the_one_at_another_line_is_looked_at_first():
    ends = [end(rank, at_line(LATE, 11 if rank == 3 else 9)) for rank in range(4)]
    root = find_root(report(fault("a", *ends[:2]), fault("b", *ends[2:])), {}, None, SEATS)
    assert (root.kind, root.culprit) == (K.TIMEOUT, False)
    assert (
        "look first at rank 3 on node-b (host host-b), which waited at t.py:11, all others at t.py:9"
        in root.sentence
    )
