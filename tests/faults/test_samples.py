"""Real stderr of ranks that ended in many ways: what is read from it, and what it is taken for."""

import signal
from pathlib import Path

import pytest

from nvrx_async.faults import EndFacts, classify, fingerprint, last_exception, last_lines, peer, rank_error
from nvrx_async.job.records import EndedBy, FaultKind

SAMPLES = Path(__file__).parent / "samples"
KINDS = FaultKind

# sample, exit code (negative: signal), type, line in the user's script, kind, deterministic
CASES = [
    ("raise.rank1", 1, "ValueError", 7, KINDS.EXCEPTION, True),
    ("raise.rank0", 1, "RuntimeError", 67, KINDS.CONNECTION_LOST, False),
    ("sigkill.rank0", 1, "RuntimeError", 67, KINDS.CONNECTION_LOST, False),
    ("exit0.rank0", 1, "RuntimeError", 67, KINDS.CONNECTION_LOST, False),
    ("return0.rank0", 1, "RuntimeError", 67, KINDS.CONNECTION_LOST, False),
    ("object.rank0", 1, "RuntimeError", 30, KINDS.CONNECTION_LOST, False),
    ("p2p.rank0", 1, "RuntimeError", 32, KINDS.CONNECTION_LOST, False),
    ("shape.rank0", -signal.SIGABRT, "gloo::EnforceNotMet", 0, KINDS.EXCEPTION, False),
    ("shape.rank1", 1, "RuntimeError", 65, KINDS.CONNECTION_LOST, False),
    ("lateexit.rank1", 1, "ValueError", 44, KINDS.EXCEPTION, True),
    ("timeout.rank0", 1, "RuntimeError", 67, KINDS.TIMEOUT, False),
    ("barrier_missed.rank0", 1, "RuntimeError", 28, KINDS.COLLECTIVE_MISSED, False),
    ("store_wait.rank0", 1, "torch.distributed.DistStoreError", 24, KINDS.TIMEOUT, False),
    ("init_absent.rank0", 1, "torch.distributed.DistStoreError", 18, KINDS.TIMEOUT, False),
    ("init_absent0.rank1", 1, "torch.distributed.DistNetworkError", 18, KINDS.CONNECTION_LOST, False),
    ("init_killed.rank1", 1, "torch.distributed.DistNetworkError", 18, KINDS.CONNECTION_LOST, False),
    ("store_lost.rank1", 1, "torch.distributed.DistNetworkError", 22, KINDS.CONNECTION_LOST, False),
    ("enospc.rank1", 1, "OSError", 47, KINDS.STORAGE, False),
    ("save_full.rank1", 1, "RuntimeError", 48, KINDS.STORAGE, False),
    ("oom_cpu.rank1", 1, "RuntimeError", 49, KINDS.EXCEPTION, False),
    ("memory_error.rank1", 1, "MemoryError", 50, KINDS.EXCEPTION, False),
    ("loader.rank1", 1, "ValueError", 12, KINDS.EXCEPTION, True),
    ("loader_killed.rank1", 1, "RuntimeError", 52, KINDS.EXCEPTION, False),
    ("chained.rank1", 1, "RuntimeError", 55, KINDS.EXCEPTION, True),
    ("group.rank1", 1, "ExceptionGroup", 64, KINDS.EXCEPTION, False),
    ("sysexit.rank1", 1, None, 0, KINDS.EXIT_CODE, False),
    ("caught.rank1", -signal.SIGKILL, None, 0, KINDS.SIGNAL, False),
    ("misc_assert", 1, "AssertionError", 27, KINDS.EXCEPTION, True),
    ("misc_glued", 1, "ValueError", 40, KINDS.EXCEPTION, True),
    ("misc_kbd", 130, "KeyboardInterrupt", 26, KINDS.EXCEPTION, False),
    ("misc_local", 1, "f.<locals>.E", 31, KINDS.EXCEPTION, True),
    ("misc_main_ignored", 1, "ValueError", 14, KINDS.EXCEPTION, True),
    ("misc_multiline", 1, "ValueError", 21, KINDS.EXCEPTION, True),
    ("misc_notes", 1, "ValueError", 23, KINDS.EXCEPTION, True),
    ("misc_pool", 1, "ValueError", 20, KINDS.EXCEPTION, True),
    ("misc_qualified", 1, "json.decoder.JSONDecodeError", 25, KINDS.EXCEPTION, True),
    ("misc_recursion", 1, "RecursionError", 36, KINDS.EXCEPTION, True),
    ("misc_spawn", 1, "torch.multiprocessing.spawn.ProcessExitedException", 17, KINDS.EXCEPTION, False),
    ("misc_thread", 3, "ValueError", 5, KINDS.EXCEPTION, True),
    ("misc_thread_main", 1, "KeyError", 9, KINDS.EXCEPTION, True),
    ("syntax", 1, "SyntaxError", 2, KINDS.EXCEPTION, True),
]


def read(name):
    return (SAMPLES / f"{name}.stderr").read_text()


def test_every_sample_has_a_case():
    assert {path.stem for path in SAMPLES.glob("*.stderr")} == {case[0] for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_sample(case):
    name, status, kind_of_error, line, kind, certain = case
    text = read(name)
    code, number = (status, None) if status >= 0 else (None, -status)

    error = rank_error(text, code, number)

    assert (error.type if error else None, error.line if error else 0) == (kind_of_error, line)
    found = classify(EndFacts(code, number, EndedBy.ITSELF, text), error)
    assert found.kind is kind
    assert found.detail
    assert (fingerprint(error, found.kind) is not None) is certain


@pytest.mark.parametrize(("name", "status"), [case[:2] for case in CASES if case[2]])
def test_sample_behind_much_other_output(name, status):
    before = "".join(f"step {number} loss 0.{number}\n" for number in range(9000))
    code, number = (status, None) if status >= 0 else (None, -status)

    error = rank_error(before + read(name), code, number)

    assert error == rank_error(read(name), code, number)


@pytest.mark.parametrize("name", ["raise.rank0", "sigkill.rank0", "init_killed.rank1", "object.rank0"])
def test_peer_of_a_lost_connection_is_in_the_detail(name):
    error = last_exception(read(name))

    address = peer(error)

    assert address.startswith("127.0.0.1:")
    assert address in classify(EndFacts(1, None, EndedBy.ITSELF, ""), error).detail


def test_a_file_line_and_function_are_the_innermost_of_the_users_code():
    error = last_exception(read("loader.rank1"))

    assert (error.file, error.line, error.function) == ("/home/user/app/train.py", 12, "__getitem__")
    assert error.message == "bad sample 0"


def test_last_lines_show_the_cause_that_a_rank_only_printed():
    text = read("lateexit.rank1").split("\n", 1)[0]

    assert last_lines(text, 3) == ("ROOT CAUSE: bad data shard 17",)


def test_a_cut_in_the_middle_of_the_frames_does_no_harm():
    whole = read("raise.rank1")
    frames = whole[whole.index('"/home') :]
    cut = "x" * (64 * 1024 - len(frames)) + "\n"

    error = last_exception("earlier " + cut[len("earlier ") :] + frames.partition("\n")[2])

    assert (error.type, error.message, error.line) == ("ValueError", "bad shard 17", 7)
