"""Tables and YAML: pure parts of `nvrx`."""

from __future__ import annotations

import pytest
import yaml

from nvrx_launcher.ctl.table import Cell, Column, cut, signs, table
from nvrx_launcher.ctl.yaml_text import yaml_text

COLUMNS = [Column("JOB"), Column("N", right=True), Column("WHY", flexible=True), Column("PID", priority=1)]
ROW = ["llama", "2", "rank 1 raised ValueError: a long story that goes on", "4711"]


def test_columns_are_as_wide_as_their_longest_cell():
    lines = table(COLUMNS, [ROW], None)
    assert lines == [
        "JOB    N  WHY                                                  PID",
        "llama  2  rank 1 raised ValueError: a long story that goes on  4711",
    ]


@pytest.mark.parametrize("width", [60, 40, 30, 20])
def test_a_table_is_as_wide_as_its_terminal_at_most(width):
    assert max(map(len, table(COLUMNS, [ROW], width))) <= width


def test_what_matters_least_is_left_out_before_text_gets_unreadable():
    assert "PID" not in table(COLUMNS, [ROW], 22)[0]
    assert "PID" in table(COLUMNS, [ROW], 40)[0]


def test_text_that_has_to_be_read_keeps_the_room_for_that():
    roomy = [*COLUMNS[:2], Column("WHY", flexible=True, least=30), Column("PID", priority=1)]
    assert "PID" not in table(roomy, [ROW], 40)[0]
    assert "rank 1 raised ValueError: a l…" in table(roomy, [ROW], 40)[1]


def test_paint_takes_no_room():
    painted = table([Column("A"), Column("B")], [[Cell("x", lambda text: f"\x1b[31m{text}\x1b[0m"), "y"]], 20)
    assert painted[1] == "\x1b[31mx\x1b[0m  y"


def test_wide_signs_take_two_places():
    assert signs("日本") == 4
    assert cut("日本語", 5) == "日本…"


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [1, 2.5, None, True], "c": {"d": "x: y", "e": []}, "f": {}},
        [{"a": "yes", "b": "1.0"}, {"c": "line\nbreak", "d": "# no comment", "e": ""}],
        {"quote": "it's", "colon": "a:b", "date": "2026-01-01T00:00:00.000Z", "dash": "- x", "umlaut": "ü"},
        "null",
    ],
)
def test_yaml_is_read_back_as_it_was(value):
    read = yaml.load(yaml_text(value), Loader=yaml.BaseLoader)
    assert read == yaml.load(yaml.safe_dump(value), Loader=yaml.BaseLoader)
    assert yaml.safe_load(yaml_text(value)) == value
