"""The file named by TORCHELASTIC_ERROR_FILE, in the format that torch's `@record` writes (torch 2.13).

    {"message": {"message": "ValueError: …", "extraInfo": {"py_callstack": "…", "timestamp": "<Unix time, s>"}}}

`message` may also be plain text, as handlers of other makers write it. The agent reads those of its ranks, and
writes one itself where the variable was set for it: what started the agent (a pod, TorchX) looks there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvrx_async.faults import last_exception
from nvrx_async.job.records import PythonError

if TYPE_CHECKING:
    from nvrx_async.job.records import Outcome

LIMIT_BYTES = 1 << 20
MESSAGE_CHARS = 2000
_TYPED = re.compile(r"(?P<type>[A-Za-z_][\w.]*): (?P<message>.*)", re.DOTALL)


def recorded_error(path: Path) -> PythonError | None:
    """The exception that a rank recorded; None if it recorded none, or nothing that can be read."""
    try:
        with path.open("rb") as file:
            written = json.loads(file.read(LIMIT_BYTES))
    # No file in most cases; a torn one if the rank died while it wrote; whatever else a rank may put there.
    except (OSError, ValueError, RecursionError):
        return None
    message = written.get("message") if isinstance(written, dict) else None
    if isinstance(message, str):
        return _error(message, "")
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    callstack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return _error(str(message.get("message", "")), str(callstack or ""))


def _error(message: str, callstack: str) -> PythonError | None:
    raised = last_exception(callstack)
    if raised is not None:
        return raised
    # As long as one read from stderr at most: a report that etcd finds too large would never get there.
    message = message if len(message) <= MESSAGE_CHARS else message[: MESSAGE_CHARS - 1] + "…"
    typed = _TYPED.fullmatch(message)
    if typed:
        return PythonError(typed["type"], typed["message"])
    return PythonError("Error", message) if message else None


def write_reply(path: Path, outcome: Outcome, unix_time_s: float) -> None:
    """Write how a job failed, for what started this agent; blocks on the disk.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(json.dumps(_reply(outcome, unix_time_s)), encoding="utf-8")


def _reply(outcome: Outcome, unix_time_s: float) -> dict[str, Any]:
    root = outcome.root
    error = root.end.error if root is not None and root.end is not None else None
    place = f'  File "{error.file}", line {error.line}, in {error.function}\n' if error and error.file else ""
    said = f"{error.type}: {error.message}" if error else (root.sentence if root else outcome.reason)
    extra = {"timestamp": str(int(unix_time_s)), "py_callstack": f"{place}{said}" if error else ""}
    return {"message": {"message": said, "extraInfo": extra, "errorCode": outcome.exit_code}}
