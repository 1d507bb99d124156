"""Which signals stop a job, and which are the ranks' own."""

from __future__ import annotations

import signal

import pytest

from nvrx_launcher.errors import BadValueError
from nvrx_launcher.signals import STOPPING, passed_on, signal_numbers, stopping


def test_names_are_read() -> None:
    assert signal_numbers("SIGUSR1, sigterm,") == (signal.SIGUSR1, signal.SIGTERM)


@pytest.mark.parametrize("name", ["USR1", "SIGNONE", "12", "SIGKILL", "SIGCHLD", "SIGSEGV"])
def test_what_no_agent_can_pass_on_is_refused(name: str) -> None:
    with pytest.raises(BadValueError):
        signal_numbers(name)


def test_the_usual_ones_are_passed_on_whatever_is_named() -> None:
    usual = (signal.SIGUSR1, signal.SIGUSR2)
    assert passed_on(STOPPING) == usual
    assert passed_on([signal.SIGCONT, signal.SIGUSR2, signal.SIGTERM]) == (*usual, signal.SIGCONT)


def test_sighup_stays_ignored_where_it_was_so_at_the_start() -> None:
    def all_ignored(_: int) -> object:
        return signal.SIG_IGN

    def none_ignored(_: int) -> object:
        return signal.SIG_DFL

    assert stopping(all_ignored) == (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
    assert stopping(none_ignored) == STOPPING
