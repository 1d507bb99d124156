"""Which signals stop a job, and which are the ranks' own."""

from __future__ import annotations

import os
import signal

import pytest

from nvrx_launcher.errors import BadValueError
from nvrx_launcher.signals import STOPPING, held, passed_on, signal_numbers, stopping


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


def test_a_signal_for_the_ranks_ends_nothing_before_the_agent_listens() -> None:
    with held([signal.SIGUSR1]):
        os.kill(os.getpid(), signal.SIGUSR1)  # would be the end of this very process
        assert (
            signal.getsignal(signal.SIGUSR1) is not signal.SIG_IGN
        )  # or whatever is started would inherit it
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_program_that_embeds_the_agent_has_its_handlers_back() -> None:
    def own(_number: int, _frame: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, own)
    try:
        with held([]):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as an event loop does when it ends
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
