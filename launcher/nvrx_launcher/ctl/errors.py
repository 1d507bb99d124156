"""Errors of `nvrx`: what happened, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

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


class SeveralJobsError(LauncherError):
    """Jobs of the same name run on this machine: nobody is to be asked, or stopped, by chance."""

    exit_code = ExitCode.USAGE

    def __init__(self, run_id: str, etcds: Sequence[str]) -> None:
        super().__init__(
            f"{len(etcds)} jobs of this machine are named {run_id}, their etcds are {' and '.join(etcds)}",
            f"say which: --etcd {etcds[0]}",
        )


class NothingFoundError(LauncherError):
    """What was asked for is not there: a log, a node, a rank."""

    exit_code = ExitCode.USAGE
