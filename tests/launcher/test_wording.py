"""Words for people."""

from __future__ import annotations

import orjson
import pytest

from nvrx_async.job.records import EndedBy, FaultKind, Level, RankEnd, Root
from nvrx_launcher.advice import advice, what_next
from nvrx_launcher.wording import (
    clean,
    count,
    duration,
    escaped,
    one_line,
    rank_range,
    shortened,
    signal_name,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (86_400 * 2 + 3600 * 4, "2 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_numbers():
    assert (count(1, "rank"), count(0, "rank"), count(2, "rank")) == ("1 rank", "0 ranks", "2 ranks")
    assert (rank_range(3, 1), rank_range(4, 4)) == ("rank 3", "ranks 4-7")
    assert (signal_name(15), signal_name(63)) == ("SIGTERM", "signal 63")


def test_text_of_ranks_cannot_paint_the_terminal():
    assert clean("\x1b]0;title\x07a\x1b[2Jb\tc\x00\x1b(Bd  ") == "ab    cBd"
    assert clean("a\x9b31mred\x9d0;title\x9cb\u202ec\u200bd\u2028e\x85f") == "aredbcdef"
    assert clean("\x1bPq#0;1\x1b\\x\x1b]8;;http://e\x1b\\link\x1b]8;;\x07y") == "xlinky"
    assert clean("ü 漢字 👩\u200d🚀") == "ü 漢字 👩\u200d🚀"
    assert one_line("a\nb\x1b[A\r\nc") == "a b c"
    assert shortened("a  b\n c" * 20, 12) == "a b ca b..."
    assert shortened(" short ", 12) == "short"


@pytest.mark.parametrize(
    ("kind", "level", "restarts", "word"),
    [
        (FaultKind.EXCEPTION, Level.STOP, 0, "--max-restarts"),
        (FaultKind.EXCEPTION, Level.STOP, 3, ""),
        (FaultKind.EXCEPTION, Level.IN_JOB, 3, ""),
        (FaultKind.NODE_LOST, Level.STOP, 0, ""),
        (FaultKind.OUT_OF_MEMORY, Level.IN_JOB, 3, "memory"),
        (FaultKind.CONNECTION_LOST, Level.STOP, 3, "network"),
    ],
)
def test_advice(kind, level, restarts, word):
    found = advice(Root(kind, "x"), level, restarts)
    assert word in found
    assert bool(found) is bool(word)


def test_an_error_that_repeats_is_not_answered_by_restarts():
    assert advice(Root(FaultKind.EXCEPTION, "x", fingerprint="same"), Level.STOP, 0) == ""


def test_what_to_do_after_a_job():
    end = RankEnd(0, 0, 1, FaultKind.EXIT_CODE, EndedBy.ITSELF, exit_code=3, log="rank-0.err")
    assert what_next(Root(FaultKind.EXIT_CODE, "x", end=end), 1, 3) == "read the log of that rank"
    assert what_next(None, 75, 3).startswith("start it again")
    assert what_next(None, 1, 3) == ""
    assert what_next(Root(FaultKind.EXCEPTION, "x"), 130, 0) == ""


def test_data_holds_no_sign_that_paints_and_means_the_same():
    value = {"what": "a\x9b31m\u202eb\x7f\nü"}
    text = escaped(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
    assert not {"\x9b", "\u202e", "\x7f"} & set(text)
    assert orjson.loads(text) == value
