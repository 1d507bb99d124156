"""Errors of `nvrx`: what happened, and what to do next."""

from __future__ import annotations

from nvrx_launcher.errors import LauncherError
from nvrx_launcher.exit_codes import ExitCode


class NoEtcdError(LauncherError):
    """Nobody said where etcd is, and no job of this user runs on this machine."""

    exit_code = ExitCode.USAGE


class NothingFoundError(LauncherError):
    """What was asked for is not there: a log, a node, a rank."""

    exit_code = ExitCode.USAGE
