"""Which kind of fault ended a rank."""

import signal

import pytest

from nvrx_async.faults import EndFacts, classify, classify_error, missed_ranks, peer, signal_name
from nvrx_async.job.records import EndedBy, FaultKind, PythonError

OWN = PythonError("ValueError", "bad shard", "train.py", 41)
LOST = PythonError(
    "RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:2242"
)
K = FaultKind


def ended(exit_code=None, number=None, by=EndedBy.ITSELF, **more):
    return EndFacts(exit_code, number, by, **more)


@pytest.mark.parametrize(
    ("facts", "error", "kind"),
    [
        (ended(0), None, None),
        (ended(0, by=EndedBy.US), None, K.STOPPED_BY_US),
        (ended(0, stderr_tail="CUDA error: uncorrectable ECC error encountered"), OWN, None),
        (ended(), None, K.START_FAILED),
        (ended(1), OWN, K.EXCEPTION),
        (ended(1), None, K.EXIT_CODE),
        (ended(137), None, K.EXIT_CODE),
        (ended(None, 9, EndedBy.SOMEONE_ELSE), None, K.SIGNAL),
        (ended(None, 11), None, K.SIGNAL),
        (ended(1), LOST, K.CONNECTION_LOST),
        # the kernel's evidence
        (ended(None, 9, EndedBy.SOMEONE_ELSE, oom_kill=True), None, K.OUT_OF_MEMORY),
        (ended(137, oom_kill=True), None, K.OUT_OF_MEMORY),
        (ended(None, 9, EndedBy.US, oom_kill=True), None, K.STOPPED_BY_US),
        (ended(None, 11, oom_kill=True), None, K.SIGNAL),
        (ended(1, oom_kill=True), OWN, K.EXCEPTION),
        (
            ended(1, oom_kill=True),
            PythonError("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. "),
            K.OUT_OF_MEMORY,
        ),
        # stopped by us, with and without a story of its own
        (ended(None, 9, EndedBy.US), None, K.STOPPED_BY_US),
        (ended(None, 15, EndedBy.US), OWN, K.EXCEPTION),
        (ended(None, 9, EndedBy.US), LOST, K.CONNECTION_LOST),
        (ended(1, None, EndedBy.US), PythonError("KeyboardInterrupt", ""), K.STOPPED_BY_US),
        (ended(143, None, EndedBy.US), None, K.STOPPED_BY_US),
        (ended(1, None, EndedBy.US), OWN, K.EXCEPTION),
        # the hardware explains what came of it
        (
            ended(1, stderr_tail="RuntimeError: CUDA error: uncorrectable ECC error encountered"),
            OWN,
            K.HARDWARE,
        ),
        (
            ended(1, kernel_lines=("NVRM: Xid (PCI:0000:10:1c): 79, GPU has fallen off the bus.",)),
            LOST,
            K.HARDWARE,
        ),
        (ended(1, kernel_lines=("NVRM: Xid (PCI:0000:10:1c): 31, pid=7, MMU Fault",)), OWN, K.EXCEPTION),
        (
            ended(1, kernel_lines=("NVRM: Xid (PCI:0:1): 63, Row Remapper: uncorrectable ECC error",)),
            OWN,
            K.EXCEPTION,
        ),
        (ended(None, 9, EndedBy.US, stderr_tail="NVRM: Xid (PCI:0:1): 48, DBE"), None, K.HARDWARE),
        # NCCL's monitor aborts without an exception
        (
            ended(None, 6, stderr_tail="[E1] ProcessGroupNCCL's watchdog got stuck for 480 seconds\nbye\n"),
            None,
            K.TIMEOUT,
        ),
        (ended(None, 6, stderr_tail="free(): invalid pointer\n"), None, K.SIGNAL),
    ],
)
def test_kind(facts, error, kind):
    found = classify(facts, error)

    assert found.kind is kind
    assert found.detail


@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered", K.HARDWARE),
        (
            "RuntimeError",
            "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
            K.HARDWARE,
        ),
        ("RuntimeError", "CUDA error: device-side assert triggered", K.EXCEPTION),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", K.EXCEPTION),
        ("RuntimeError", "CUDA error: unspecified launch failure", K.EXCEPTION),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", K.EXCEPTION),
        (
            "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL 2.2",
            K.CONNECTION_LOST,
        ),
        (
            "torch.distributed.DistBackendError",
            (
                "NCCL error in: x.cpp:77, internal error, NCCL version 2.27\nncclInternalError: Internal"
                " check failed.\nLast error:\nNet : Connection closed by remote peer host-b<43236>"
            ),
            K.CONNECTION_LOST,
        ),
        (
            "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:3, invalid usage, NCCL version 2.27",
            K.EXCEPTION,
        ),
        (
            "c10::DistBackendError",
            (
                "[Rank 1] watchdog thread terminated with exception: [Rank 1] Watchdog caught "
                "collective operation timeout: WorkNCCL(SeqNum=7) ran for 600081 milliseconds"
            ),
            K.TIMEOUT,
        ),
        ("torch.distributed.DistStoreError", "wait timeout after 300000ms, keys: /worker/0", K.TIMEOUT),
        ("torch.distributed.DistStoreError", "something that a later version says", K.CONNECTION_LOST),
        ("torch.distributed.DistNetworkError", "Failed to recv, got 0 bytes.", K.CONNECTION_LOST),
        (
            "RuntimeError",
            "[/x/third_party/gloo/gloo/transport/tcp/pair.cc:1] a new wording",
            K.CONNECTION_LOST,
        ),
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:525] Socket closed [10.0.0.7]:2242", K.CONNECTION_LOST),
        (
            "RuntimeError",
            "[gloo/transport/tcp/pair.cc:1] Write error [10.0.0.7]:2: Broken pipe",
            K.CONNECTION_LOST,
        ),
        ("RuntimeError", "Socket closed in my own protocol", K.CONNECTION_LOST),
        ("RuntimeError", "Connection reset by peer: my database", K.EXCEPTION),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", K.CONNECTION_LOST),
        ("TimeoutError", "my own time-out", K.EXCEPTION),
        (
            "RuntimeError",
            "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms",
            K.COLLECTIVE_MISSED,
        ),
        (
            "RuntimeError",
            "Detected mismatch between collectives on ranks. Rank 0 is running ALLREDUCE",
            K.EXCEPTION,
        ),
        ("OSError", "[Errno 122] Disk quota exceeded: '/ckpt/1.pt'", K.STORAGE),
        ("OSError", "[Errno 116] Stale file handle", K.STORAGE),
        ("OSError", "[Errno 5] Input/output error", K.STORAGE),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'x'", K.EXCEPTION),
        (
            "RuntimeError",
            "[enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing",
            K.STORAGE,
        ),
        (
            "RuntimeError",
            "PytorchStreamReader failed reading zip archive: failed finding central",
            K.EXCEPTION,
        ),
        ("ValueError", "No space left on device is only a text here", K.EXCEPTION),
    ],
)
def test_kind_of_an_error(name, message, kind):
    assert classify_error(PythonError(name, message)).kind is kind


@pytest.mark.parametrize(
    ("message", "address"),
    [
        ("Connection closed by peer [127.0.0.1]:21159. This is", "127.0.0.1:21159"),
        ("Connection closed by peer [2001:db8::7]:21159.", "2001:db8::7:21159"),
        ("Read error [10.0.0.7]:2242: Connection reset by peer.", "10.0.0.7:2242"),
        ("while trying to connect to (host-b, 44609).", "host-b:44609"),
        ("addr=[::ffff:127.0.0.1]:4, remote=[::ffff:10.0.0.7]:46389): Failed", "10.0.0.7:46389"),
        ("Call to recv from 10.200.84.247<58355> failed : Broken pipe", "10.200.84.247:58355"),
        ("Connection closed by remote peer host-b.cluster<43236>", "host-b.cluster:43236"),
        ("Failed to recv, got 0 bytes.", None),
    ],
)
def test_peer(message, address):
    assert peer(PythonError("RuntimeError", message)) == address


def test_detail_keeps_what_people_need():
    assert "10.0.0.7:2242" in classify(ended(1), LOST).detail
    assert classify(ended(None, 9), None).detail == "SIGKILL"
    assert "/dev/shm" in classify(ended(None, signal.SIGBUS), None).detail
    assert classify(ended(137), None).detail == "exit code 137 (SIGKILL in a shell)"
    assert classify(ended(3), None).detail == "exit code 3"


def test_missed_ranks():
    text = "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms"

    assert missed_ranks(PythonError("RuntimeError", text)) == (1, 3)
    assert missed_ranks(OWN) == ()


def test_signal_without_a_name():
    assert (signal_name(9), signal_name(63)) == ("SIGKILL", "signal 63")
