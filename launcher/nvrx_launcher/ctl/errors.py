"""Errors of `nvrx`: what happened, and what to do next."""

from __future__ import annotations

from nvrx_launcher.errors import LauncherError
from nvrx_launcher.exit_codes import ExitCode


class NoEtcdError(LauncherError):
    """Nobody said where etcd is, and no job of this user runs on this machine."""

    exit_code = ExitCode.USAGE


class ElsewhereError(LauncherError):
    """What was asked for does not lie in the log folder that was named, and lies near it."""

    def __init__(self, message: str, hint: str, exit_code: ExitCode) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


class NothingFoundError(LauncherError):
    """What was asked for is not there: a log, a node, a rank."""

    exit_code = ExitCode.USAGE
