"""Whether an error will come again by itself, and the name under which it is recognized when it does."""

from __future__ import annotations

import re

from nvrx_async.job.records import FaultKind, PythonError

# What depends on the world around the program: files, hosts, memory, devices, helper processes, people.
_PASSING_TYPES = frozenset(
    {"OSError", "IOError", "EnvironmentError", "BlockingIOError", "ChildProcessError", "ConnectionError"}
    | {"BrokenPipeError", "ConnectionAbortedError", "ConnectionRefusedError", "ConnectionResetError"}
    | {"FileExistsError", "FileNotFoundError", "InterruptedError", "IsADirectoryError", "NotADirectoryError"}
    | {"PermissionError", "ProcessLookupError", "TimeoutError", "timeout", "gaierror", "herror", "SSLError"}
    | {"URLError", "HTTPError", "EOFError", "IncompleteRead", "Empty", "Full"}
    | {"MemoryError", "OutOfMemoryError", "AcceleratorError", "BrokenProcessPool"}
    | {"ProcessExitedException", "KeyboardInterrupt", "SystemExit", "DistNetworkError", "DistStoreError"}
    | {"DistBackendError", "DistError", "ClientError", "ExceptionGroup", "BaseExceptionGroup"}
)
_PASSING_ENDINGS = ("Timeout", "TimeoutError", "ConnectionError", "Interrupt")
_PASSING_TEXT = re.compile(
    r"\bCUDA|\bNCCL|\bcu(?:DNN|BLAS|FFT|SOLVER)|\bHIP\b|\bMIOpen|\bRCCL|\bgloo/"
    r"|out of memory|can't allocate memory|cannot allocate memory|can't start new thread|\[Errno \d+\]"
    r"|DataLoader worker|killed by signal|timed? ?out|connection|too many open files",
    re.IGNORECASE,
)
_BLANKS = (
    (re.compile(r"0x[0-9a-fA-F]+"), "<hex>"),
    (re.compile(r"(?:[\w.~+@-]*/)[\w.+@/-]+"), "<path>"),
    (re.compile(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{8}[0-9a-fA-F-]*\b"), "<hex>"),
    (re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"), "<n>"),
    (re.compile(r"\s+"), " "),
)
_MESSAGE_CHARS = 200


def deterministic(error: PythonError, kind: FaultKind | None) -> bool:
    """Whether the same start will end in the same error, as far as its text tells.

    Only an exception of the program itself, at a place that is known, can be. Errors of files, memory,
    devices and connections may go away, so they are not, even where they never will.
    """
    if kind is not FaultKind.EXCEPTION or not error.file or not error.line:
        return False
    name = error.type.rpartition(".")[2]
    if name in _PASSING_TYPES or name.endswith(_PASSING_ENDINGS):
        return False
    return not _PASSING_TEXT.search(error.message)


def fingerprint(error: PythonError | None, kind: FaultKind | None) -> str | None:
    """Name a deterministic error by its type, its message without what varies, and its place; else None.

    Numbers, addresses, paths and ids are blanked, since they differ between two occurrences of one bug.
    """
    if error is None or not deterministic(error, kind):
        return None
    message = error.message.split("\n", 1)[0][:_MESSAGE_CHARS]
    for pattern, blank in _BLANKS:
        message = pattern.sub(blank, message)
    return f"{error.type}: {message.strip()} at {error.file}:{error.line}"
