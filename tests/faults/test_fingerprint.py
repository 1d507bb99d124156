"""Recognizing an error that came before, and leaving alone what may go away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_async.faults import deterministic, fingerprint
from nvrx_async.job.records import FaultKind, PythonError

EXCEPTION = FaultKind.EXCEPTION


def error(name="ValueError", message="bad shard", line=41):
    return PythonError(name, message, "/home/user/train.py", line, "main")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bad shard 17", "bad shard 18"),
        ("loss is nan at 1.5e-3", "loss is nan at 2"),
        ("<Tensor at 0x7f3a>", "<Tensor at 0x55dc3ac58081>"),
        ("cannot parse /data/a/1.json", "cannot parse /data/b/2.json"),
        ("peer 10.0.0.7:2242 said no", "peer 10.0.1.19:31 said no"),
        ("run 3f2a9c1e-77aa-4b1c-9d55-0a1b2c3d4e5f", "run 9f2a9c1e-11aa-4b1c-9d55-0a1b2c3d4e50"),
        ("first\nsecond 1", "first\nanother"),
    ],
)
def test_what_varies_is_blanked(one, other):
    assert fingerprint(error(message=one), EXCEPTION) == fingerprint(error(message=other), EXCEPTION)


def test_type_message_and_place_tell_errors_apart():
    prints = {
        fingerprint(one, EXCEPTION)
        for one in (error(), error(line=42), error("KeyError"), error(message="bad seed"))
    }

    assert len(prints) == 4
    assert None not in prints


@pytest.mark.parametrize(
    "name", ["ValueError", "ModuleNotFoundError", "SyntaxError", "AssertionError", "my.Error"]
)
def test_errors_of_a_program_come_again(name):
    assert deterministic(error(name), EXCEPTION)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OSError", "[Errno 5] Input/output error"),
        ("FileNotFoundError", "[Errno 2] No such file"),
        ("MemoryError", ""),
        ("torch.OutOfMemoryError", "CUDA out of memory."),
        ("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered"),
        ("RuntimeError", "CUDA error: device-side assert triggered"),
        ("RuntimeError", "NCCL communicator was aborted"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        ("RuntimeError", "DataLoader worker (pid 7) exited unexpectedly"),
        ("RuntimeError", "can't start new thread"),
        ("requests.exceptions.ReadTimeout", "read"),
        ("requests.exceptions.ConnectionError", "x"),
        ("KeyboardInterrupt", ""),
    ],
)
def test_errors_of_the_world_may_go_away(name, message):
    assert not deterministic(error(name, message), EXCEPTION)
    assert fingerprint(error(name, message), EXCEPTION) is None


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not EXCEPTION] + [None])
def test_only_an_exception_of_its_own_has_a_fingerprint(kind):
    assert fingerprint(error(), kind) is None


def test_without_a_place_or_an_error_there_is_none():
    assert fingerprint(PythonError("ValueError", "x"), EXCEPTION) is None
    assert fingerprint(None, EXCEPTION) is None


@given(message=st.text(max_size=400))
def test_any_message_gives_one_line(message):
    found = fingerprint(error(message=message), EXCEPTION)

    assert found is None or (found == fingerprint(error(message=message), EXCEPTION) and "\n" not in found)
