"""Errors of the launcher: what happened, on what evidence, and what to do next."""

from __future__ import annotations

from nvrx_launcher.exit_codes import ExitCode


class LauncherError(Exception):
    """Base of this package's errors. `hint`: what to do next, often a command; `exit_code`: how to exit."""

    exit_code: int = ExitCode.NEVER_READY

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LauncherError):
    """The command line, the environment or a file named there is wrong: nothing was started."""

    exit_code = ExitCode.USAGE


class NotReadyError(LauncherError):
    """The job never became ready on this node: etcd or other nodes were missing."""


class RequeueError(LauncherError):
    """The infrastructure failed under a job that may be started again."""

    exit_code = ExitCode.REQUEUE


class BadValueError(ValueError):
    """A text that cannot be an option's value; whoever knows the option makes a UsageError of it.

    `secret`: the text holds a password, so no message may repeat it.
    """

    def __init__(self, reason: str, hint: str = "", *, secret: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.secret = secret


class KeeperStartError(LauncherError):
    """The keeper did not come up; nothing of it is left."""
