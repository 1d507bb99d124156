"""Who is blamed for a hang, from what all ranks were doing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvrx_async.faults.culprit import Frame, RankState, as_extra, culprit, from_extra, waits_for_peers

TORCH = "/venv/lib/python3.11/site-packages/torch"
ALL_REDUCE = Frame(f"{TORCH}/distributed/distributed_c10d.py", 3050, "all_reduce")
LOGGED = Frame(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper")
DDP = Frame(f"{TORCH}/autograd/graph.py", 865, "_engine_run_backward")
TRAIN = Frame("/home/u/train.py", 40, "step")
LOAD = Frame("/home/u/data.py", 7, "read")

WAITS = (ALL_REDUCE, LOGGED, TRAIN)


def rank(number: int, *frames: Frame, **changed) -> RankState:
    known = {"node": f"h{number // 2}", "hung": True, "hello": True, "step": 9, "state": "S"}
    return RankState(number, frames=frames, **{**known, **changed})


def test_who_does_not_wait_is_blamed():
    blame = culprit([rank(0, *WAITS), rank(1, LOAD, TRAIN), rank(2, DDP, TRAIN), rank(3, *WAITS)])
    assert blame.rank == 1
    assert "rank 1 on h0 is at data.py:7 in read, last at step 9 while 3 ranks wait for it" in blame.sentence


def test_a_slow_section_is_named_with_its_time():
    slow = rank(0, Frame("/x/save.py", 1, "save"), section="save", section_s=1200.0)
    blame = culprit([slow, *(rank(n, *WAITS) for n in range(1, 8))])
    assert blame.rank == 0
    assert "has been in section save for 20 min" in blame.sentence
    assert "7 ranks wait for it" in blame.sentence


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"state": "T"}, "stopped by a signal"),
        ({"hello": False}, "never connected"),
        ({"done": True}, "training is done"),
    ],
)
def test_signs_that_need_no_stack(changed, why):
    states = [rank(n, *WAITS) for n in range(4)]
    states[2] = replace(rank(2), **changed)
    blame = culprit(states)
    assert blame.rank == 2
    assert why in blame.sentence


def test_the_one_at_another_step_is_blamed_when_all_wait():
    states = [rank(n, *WAITS, step=9) for n in range(4)]
    states[3] = rank(3, *WAITS, step=10)
    assert culprit(states).rank == 3


def test_the_one_at_another_line_is_blamed_when_all_wait():
    states = [rank(n, *WAITS) for n in range(4)]
    states[1] = rank(1, ALL_REDUCE, Frame("/home/u/train.py", 77, "evaluate"))
    assert culprit(states).rank == 1


@pytest.mark.parametrize(("done", "blamed"), [(False, None), (True, 2)])
def test_who_waits_apart_is_not_blamed_where_another_left_without_a_word(done, blamed):
    gone = rank(3, hello=True, ended=True, done=done)
    states = [
        rank(0, *WAITS),
        rank(1, *WAITS),
        rank(2, ALL_REDUCE, Frame("/home/u/train.py", 77, "end")),
        gone,
    ]
    assert culprit(states).rank == blamed


def test_nobody_is_blamed_where_nobody_stands_out():
    blame = culprit([rank(n, *WAITS) for n in range(4)])
    assert blame.rank is None
    assert "none stands out" in blame.sentence


def test_where_nobody_stands_out_the_line_is_told_that_ranks_share_and_who_was_done_before():
    def at(number: int, line: int, *, step: int = 20) -> RankState:
        return rank(number, Frame("/home/u/train.py", line, "poll"), step=step)

    over = rank(3, step=20, ended=True, done=True, hung=False)
    apart = culprit([at(0, 3), at(1, 5), at(2, 7), over]).sentence
    assert "train.py" not in apart, "each is at a line of its own"
    assert "rank 3 on h1 had said that training is over at step 20, and was gone" in apart
    assert "2 of them at train.py:3 in poll" in culprit([at(0, 3), at(1, 3), at(2, 7), at(4, 8)]).sentence
    assert "4 ranks make no progress at train.py:3" in culprit([at(n, 3) for n in range(4)]).sentence
    assert culprit([rank(0, *WAITS), rank(1, ALL_REDUCE, LOAD)]).rank is None


def test_a_hung_rank_without_a_stack_is_blamed_when_the_others_get_on():
    others = [rank(n, TRAIN, hung=False, silent_s=0.1) for n in (0, 2, 3)]
    assert culprit([rank(1, silent_s=9.0), *others]).rank == 1


def test_ranks_of_the_same_stall_are_compared_though_their_deadlines_have_not_passed_yet():
    """Two agents look at moments of their own: rank 3 is not late yet by its own account."""
    come = Frame("/home/u/train.py", 46, "all_come")
    states = [rank(n, come, silent_s=2.0, hung=n < 3) for n in range(4)]
    states[1] = rank(1, LOAD, TRAIN, silent_s=2.0)
    assert culprit(states).rank == 1


def test_ranks_that_have_ended_are_not_blamed():
    states = [replace(rank(n), ended=True, state="") for n in (0, 1)]
    assert culprit([*states, rank(2, TRAIN)]).rank == 2
    assert culprit(states).rank is None


def test_saving_a_distributed_checkpoint_is_no_waiting():
    assert not waits_for_peers([Frame(f"{TORCH}/distributed/checkpoint/filesystem.py", 1, "write_data")])
    assert waits_for_peers([ALL_REDUCE])


def test_a_state_travels_with_the_rank():
    state = rank(3, *WAITS, section="save", section_s=1.5)
    kept = replace(state, frames=(ALL_REDUCE, TRAIN))
    assert from_extra(3, "h1", {"hang": as_extra(state)}) == kept
    assert kept.waits
    busy = rank(3, LOAD, TRAIN)
    assert from_extra(3, "h1", {"hang": as_extra(busy)}) == busy


def test_ranks_are_compared_where_their_stacks_part():
    """Deeper lines differ by chance: three poll for each other, at whatever line they were seen."""
    main = Frame("/home/u/train.py", 30, "main")
    come = [Frame("/home/u/train.py", line, "come") for line in (46, 47, 52)]
    states = [rank(n, come[n], main) for n in range(3)]
    assert culprit([*states, rank(3, Frame("/home/u/train.py", 28, "main"))]).rank == 3


@pytest.mark.parametrize("extra", [{}, {"hang": 3}, {"hang": {"frames": [1, ["a"]], "step": "x"}}])
def test_what_cannot_be_read_is_nothing(extra):
    state = from_extra(0, "h", extra)
    assert state is None or (state.frames == () and state.step is None)


@pytest.mark.parametrize("silent_s", [0.3, 400.0])
def test_who_has_finished_is_not_blamed_for_one_that_hangs(silent_s):
    done = rank(0, Frame("/x/train.py", 9, "main"), done=True, hung=False, silent_s=silent_s, step=49)
    blame = culprit([done, rank(1, LOAD, TRAIN, silent_s=600.0, step=4)])
    assert blame.rank == 1
    assert "has reported nothing for 10 min and is at data.py:7 in read" in blame.sentence


def test_who_has_finished_too_early_is_blamed_by_those_who_wait():
    done = rank(0, Frame("/x/train.py", 9, "main"), done=True, hung=False, silent_s=600.0)
    blame = culprit([done, rank(1, *WAITS, silent_s=600.0)])
    assert blame.rank == 0
    assert "does not end" in blame.sentence


def test_a_rank_that_never_said_anything_is_told_as_that():
    blame = culprit([rank(1, hello=False, step=None)])
    assert blame.sentence == "rank 1 on h0 stands still and never reported anything"


def test_the_step_is_the_blamed_ones_and_not_that_of_those_who_get_on():
    stalled = rank(1, Frame("/x/save.py", 1, "save"), section="save", section_s=60.0, step=30)
    blame = culprit([rank(0, TRAIN, step=628, hung=False), stalled])
    assert (
        "has been in section save for 60.0 s, at save.py:1 in save, last at step 30, the others get on"
        in (blame.sentence)
    )
