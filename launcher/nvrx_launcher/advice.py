"""What a person can do about a fault, in one sentence; nothing where there is nothing sensible to say."""

from __future__ import annotations

from typing import Final

from nvrx_async.job.records import FaultKind, Level, Root
from nvrx_launcher.exit_codes import ExitCode

_BY_KIND: Final = {
    FaultKind.OUT_OF_MEMORY: "give the job more memory, or use less: smaller batches, fewer loader workers",
    FaultKind.START_FAILED: "the rank never got going: try the command by hand on that node",
    FaultKind.CONNECTION_LOST: "only connections broke: read the log of the rank that lost none, check the network",
    FaultKind.HARDWARE: "have that node checked before it is used again",
    FaultKind.STORAGE: "check the file system the message names: space, quota, mounts",
    FaultKind.EARLY_EXIT: "a rank left while others trained: do all make the same number of steps?",
}
_RESTARTS = "--max-restarts N lets the ranks start again after a failure"


def advice(root: Root, level: Level, max_restarts: int) -> str:
    """What to do about a round's root, given what happens next and the allowed restarts."""
    if root.kind in _BY_KIND:
        return _BY_KIND[root.kind]
    if level is Level.STOP and max_restarts == 0 and not root.kind.is_membership and root.fingerprint is None:
        return _RESTARTS
    return ""


def what_next(root: Root | None, exit_code: int, max_restarts: int) -> str:
    """What to do after a job that did not succeed."""
    if exit_code == ExitCode.REQUEUE:
        return "start it again: training was not at fault"
    if root is None or exit_code > 128:  # noqa: PLR2004 - ended by a signal: the person wanted it
        return ""
    sentence = advice(root, Level.STOP, max_restarts)
    if sentence:
        return sentence
    if root.end is not None and root.end.error is not None:
        return "fix the error above, then start the job again"
    if root.end is not None and root.end.log:
        return "read the log of that rank"
    return ""
