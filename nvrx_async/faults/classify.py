"""What kind of fault ended a rank, by the final evidence and not by how loud it is.

Two rules decide most cases:

- A rank whose final exception says that it lost a peer is a victim, though it shows a traceback and its peer
  may show none.
- A message of the hardware explains whatever exception came of it.

Texts of gloo, c10d, NCCL, CUDA and the kernel are matched as those programs print them; each table says where
its lines come from. A text that no table knows is the rank's own exception: unknown is never "harmless".
"""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass
from typing import NamedTuple

from nvrx_async.faults.mismatch import is_mismatch
from nvrx_async.faults.traceback import TAIL_CHARS
from nvrx_async.job.records import EndedBy, FaultKind, PythonError


@dataclass(frozen=True, slots=True)
class EndFacts:
    """What is known of how a rank ended.

    `oom_kill`: `oom_kill` in the `memory.events` of its cgroup rose while it ran. `kernel_lines`: lines of
    the kernel log about this node's devices since the rank started, if anybody reads them.
    """

    exit_code: int | None
    signal: int | None
    by: EndedBy
    stderr_tail: str = ""
    oom_kill: bool = False
    kernel_lines: tuple[str, ...] = ()


class Classified(NamedTuple):
    """Kind of a fault, None for an exit with 0 that nobody asked for, and the evidence in a few words."""

    kind: FaultKind | None
    detail: str


# NVIDIA's Xid catalog: numbers that stand for a device, link or firmware in need of a reset or of repair.
# 48 double-bit ECC, 62 micro-controller halted, 64 failed row remap, 74 NVLink, 79 off the bus, 94 and 95
# contained and uncontained ECC, 119 and 120 GSP firmware, 140 unrecovered ECC. Left out, since a program can
# cause them: 13 (engine exception), 31 (MMU fault: a bad pointer), 43 and 45 (channel torn down, mostly for
# another error); and 63 (a row was remapped: all is well).
_HARDWARE_XIDS = frozenset({48, 62, 64, 74, 79, 94, 95, 119, 120, 140})
_XID = re.compile(r"NVRM: Xid \([^)]*\): (?P<number>\d+)")

# Left out on purpose: "device-side assert triggered", "an illegal memory access", "misaligned address" and
# "unspecified launch failure": a kernel of the program causes them far more often than a device does.
_HARDWARE = re.compile(
    r"uncorrectable ECC error|ECC_UNCORRECTABLE|double[ -]bit ECC"  # CUDA runtime, driver, kernel
    r"|uncorrectable NVLink error|peer GPU memory over nvlink or a hardware error"  # CUDA runtime
    r"|NVLink: fatal error|SXid \([^)]*\): \d+, Fatal"  # kernel: NVLink, NVSwitch
    r"|fallen off the bus|GPU is lost|GPU requires reset"  # kernel, NVML
    r"|\[Hardware Error\]: .*Uncorrected|Machine Check Exception"  # kernel: memory, CPU
    r"|PCIe Bus Error: severity=Uncorrected",  # kernel: AER
    re.IGNORECASE,
)

# gloo: transport/tcp/pair.cc, unbound_buffer.cc. c10d: socket.cpp, TCPStore.cpp, Utils.hpp. NCCL:
# ncclRemoteError and the socket and InfiniBand transports, which older versions report as ncclInternalError.
_CONNECTION = re.compile(
    r"Connection closed by (?:remote )?peer|Connection reset by peer|Connection refused|Broken pipe"
    r"|Connection was likely closed|Socket closed|No route to host|Network is unreachable"
    r"|client socket has (?:failed to connect|timed out)|failed to connect/validate|connectFullMesh failed"
    r"|remote process exited|ncclRemoteError|Got completion from peer|NCCL communicator was aborted",
    re.IGNORECASE,
)
_CONNECTION_TYPES = frozenset(
    {"DistNetworkError", "ConnectionError", "ConnectionResetError", "ConnectionAbortedError"}
    | {"ConnectionRefusedError", "BrokenPipeError"}
)
_MISSED = re.compile(r"Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier", re.IGNORECASE)
_TIMEOUT = re.compile(
    r"Timed out waiting \d+ ?ms|timed out in monitoredBarrier|wait timeout after|Timed out after \d+ seconds"
    r"|Watchdog caught collective operation timeout|watchdog got stuck|Operation timed out!"
    r"|Application timeout caused pair closure|socket .* timed out after",
    re.IGNORECASE,
)
_GLOO = re.compile(r"gloo/(?:transport|rendezvous)/\S+:\d+\]")

# errno of Linux: EIO, ENOSPC, EROFS, ESTALE, EDQUOT. torch: inline_container.cc when it writes.
_STORAGE = re.compile(
    r"\[Errno (?:5|28|30|116|122)\]"
    r"|No space left on device|Disk quota exceeded|Stale (?:NFS )?file handle|Input/output error"
    r"|Read-only file system|PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos"
    r"|iostream error",
    re.IGNORECASE,
)
_OS_ERRORS = frozenset({"OSError", "IOError", "RuntimeError", "CheckpointException", "SafetensorError"})

_DISTRIBUTED = re.compile(r"gloo|NCCL|c10d|TCPStore|socket", re.IGNORECASE)
_DETAIL_CHARS = 300
_LINE_CHARS = 2000
_SHELL_SIGNALS = range(129, 193)

# Exceptions that a rank raises because it was told to stop, or because its helpers were.
_STOPPING = re.compile(
    r"KeyboardInterrupt|SystemExit|Signal|Terminat|Interrupt|Cancel|EOFError|BrokenProcessPool"
)

_PEER = re.compile(
    r"(?:peer|Read error|Write error|Socket closed|remote=|recv from|send to|connect to)\s*\(?"
    r"(?:\[(?P<bracketed>[^\]]+)\]|(?P<host>[\w.-]+))(?:<|, ?|:)(?P<port>\d{1,5})\b"
)
_KILLED_HELPER = re.compile(r"killed by signal: Killed|SIGKILL|exited unexpectedly|terminated abruptly")


def classify(facts: EndFacts, error: PythonError | None) -> Classified:
    """Say what kind of fault ended a rank.

    Args:
        facts: how it ended.
        error: the exception it ended by, as `rank_error` found it.
    """
    evident = _evident(facts)
    if evident:
        return evident
    error = error or _crash_of_watchdog(facts)
    if facts.oom_kill and facts.by is not EndedBy.US and _killed(facts, error):
        return Classified(FaultKind.OUT_OF_MEMORY, "killed by the kernel: the memory limit was reached")
    if error and not (facts.by is EndedBy.US and _answers_stop(facts, error)):
        return classify_error(error)
    if facts.by is EndedBy.US:
        return Classified(FaultKind.STOPPED_BY_US, _ended(facts))
    return Classified(FaultKind.EXIT_CODE if facts.signal is None else FaultKind.SIGNAL, _ended(facts))


def classify_error(error: PythonError) -> Classified:
    """Say what kind of fault an exception stands for, whatever the rank's exit status."""
    text = f"{error.type}: {error.message}" if error.message else error.type
    name = error.type.rpartition(".")[2].rpartition(":")[2]
    missed = missed_ranks(error)
    distributed = name.startswith("Dist") or bool(_DISTRIBUTED.search(text))
    checks = (
        (FaultKind.HARDWARE, _HARDWARE.search(text)),
        (FaultKind.EXCEPTION, is_mismatch(error)),
        (FaultKind.COLLECTIVE_MISSED, missed),
        (FaultKind.STORAGE, name in _OS_ERRORS and _STORAGE.search(text)),
        (FaultKind.CONNECTION_LOST, name in _CONNECTION_TYPES),
        (FaultKind.CONNECTION_LOST, distributed and _CONNECTION.search(text)),
        (FaultKind.TIMEOUT, distributed and _TIMEOUT.search(text)),
        # What the store and gloo's transport say otherwise is the state of a connection in other words.
        (FaultKind.CONNECTION_LOST, name == "DistStoreError" or _GLOO.search(text)),
    )
    kind = next((kind for kind, holds in checks if holds), FaultKind.EXCEPTION)
    short = text.split("\n", 1)[0][:_DETAIL_CHARS]
    if missed:
        short = f"waited for rank {', '.join(str(rank) for rank in missed)}: {short}"
    named = peer(error) if kind in (FaultKind.CONNECTION_LOST, FaultKind.TIMEOUT) else None
    return Classified(kind, f"peer {named}: {short}" if named else short)


def peer(error: PythonError) -> str | None:
    """Return the peer (`host:port`) that an error of a connection names, None if it names none."""
    found = _PEER.search(error.message)
    if not found:
        return None
    host = (found["bracketed"] or found["host"]).removeprefix("::ffff:")
    return f"{host}:{found['port']}"


def missed_ranks(error: PythonError) -> tuple[int, ...]:
    """Return the ranks that an error says did not enter a collective."""
    found = _MISSED.search(error.message)
    return tuple(int(rank) for rank in found["ranks"].split(",")) if found else ()


def signal_name(number: int) -> str:
    """Return SIGKILL for 9; a number that has no name stays a number."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _evident(facts: EndFacts) -> Classified | None:
    """What needs no look at the exception."""
    if facts.exit_code == 0:
        stopped = facts.by is EndedBy.US
        return Classified(FaultKind.STOPPED_BY_US if stopped else None, "ended with exit code 0")
    hardware = _hardware_line(facts)
    if hardware:
        return Classified(FaultKind.HARDWARE, hardware)
    if facts.exit_code is None and facts.signal is None:
        return Classified(FaultKind.START_FAILED, "its process could not be created")
    return None


def _hardware_line(facts: EndFacts) -> str | None:
    lines = (*facts.kernel_lines, *facts.stderr_tail[-TAIL_CHARS:].splitlines())
    for line in reversed(lines):
        xid = _XID.search(line)
        # A line with a number is judged by its number alone: some harmless Xids mention ECC.
        if (int(xid["number"]) in _HARDWARE_XIDS) if xid else _HARDWARE.search(line):
            return line.strip()[:_DETAIL_CHARS]
    return None


def _crash_of_watchdog(facts: EndFacts) -> PythonError | None:
    """NCCL's monitor aborts the process without an exception; its last lines say why."""
    if facts.signal != signals.SIGABRT:
        return None
    for line in reversed(facts.stderr_tail[-TAIL_CHARS:].splitlines()):
        found = _TIMEOUT.search(line[:_LINE_CHARS]) if "NCCL" in line else None
        if found:
            return PythonError("c10::DistBackendError", line[found.start() :].strip()[:_DETAIL_CHARS])
    return None


def _killed(facts: EndFacts, error: PythonError | None) -> bool:
    """Whether what ended, the rank or a helper of it, was ended as the kernel does when memory is out."""
    if facts.signal == signals.SIGKILL or facts.exit_code == 128 + signals.SIGKILL:
        return True
    return error is not None and bool(_KILLED_HELPER.search(error.message))


def _answers_stop(facts: EndFacts, error: PythonError) -> bool:
    """Whether this exception came of our own stop signal, which the rank handled and then exited."""
    return facts.exit_code is not None and bool(_STOPPING.search(error.type))


def _ended(facts: EndFacts) -> str:
    if facts.signal is not None:
        name = signal_name(facts.signal)
        return f"{name} (often: /dev/shm is full)" if facts.signal == signals.SIGBUS else name
    code = facts.exit_code or 0
    # Shells say so of a child that a signal ended.
    shell = f" ({signal_name(code - 128)} in a shell)" if code in _SHELL_SIGNALS else ""
    return f"exit code {code}{shell}"
