"""Output of ranks on the console."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_launcher.rank_output import MAX_LINE_BYTES, Line, LineAssembler, OutputPrinter, Stream

OUT, ERR = Stream.STDOUT, Stream.STDERR


class Screen:
    def __init__(self, **settings):
        self.out, self.err = io.BytesIO(), io.BytesIO()
        self.now_s = 100.0
        self.printer = OutputPrinter(self.out, self.err, clock=lambda: self.now_s, **settings)

    def shown(self):
        return self.out.getvalue().decode()


def lines_of(*pieces: bytes) -> list[Line]:
    assembler = LineAssembler()
    return [*(line for piece in pieces for line in assembler.feed(piece)), *assembler.finish()]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], [Line(b"a"), Line(b"b")]),
        ([b"a", b"b\nc"], [Line(b"ab"), Line(b"c")]),
        ([b"\n\n"], [Line(b""), Line(b"")]),
        ([b"a\r\nb\r", b"\nc\r\r\n"], [Line(b"a"), Line(b"b"), Line(b"c")]),
        ([b"\r1%\r2%\r3%\n"], [Line(b"1%", redrawn=True), Line(b"2%", redrawn=True), Line(b"3%")]),
        ([b"\r1%", b"\r2%", b"\r"], [Line(b"1%", redrawn=True), Line(b"2%")]),
        ([b"\r1%\r2%", b"\r", b"\n"], [Line(b"1%", redrawn=True), Line(b"2%")]),
        ([b"half"], [Line(b"half")]),
        ([b""], []),
        ([b"\r"], []),
        ([b"\xff\x00\n"], [Line(b"\xff\x00")]),
    ],
)
def test_lines(pieces, lines):
    assert lines_of(*pieces) == lines


@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", b"bc", b"\r\n"])), st.data())
def test_how_the_bytes_are_cut_changes_nothing(parts, data):
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert lines_of(*pieces) == lines_of(whole)
    assert b"".join(line.text for line in lines_of(*pieces)) == whole.replace(b"\r", b"").replace(b"\n", b"")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r"])
def test_endless_lines_are_split_and_nothing_is_lost(end):
    text = bytes(range(65, 91)) * 10_000
    found = lines_of(text[:100_000], text[100_000:] + end)
    assert b"".join(line.text for line in found) == text
    assert max(len(line.text) for line in found) == MAX_LINE_BYTES


def test_every_line_has_its_rank_and_nothing_is_glued():
    screen = Screen(world_size=2)
    screen.printer.feed(0, OUT, b"epoch 1\nhalf of ")
    screen.printer.feed(1, OUT, b"mine\n")
    screen.printer.feed(0, OUT, b"a line\n")
    screen.printer.feed(1, ERR, b"warning\n")
    assert screen.shown() == "[rank 0] epoch 1\n[rank 1] mine\n[rank 0] half of a line\n"
    assert screen.err.getvalue() == b"[rank 1] warning\n"


def test_unfinished_lines_come_at_the_end():
    screen = Screen(world_size=2)
    screen.printer.feed(0, OUT, b"zero")
    screen.printer.feed(1, OUT, b"one")
    screen.printer.end(1, OUT)
    screen.printer.end(1, OUT)
    assert screen.shown() == "[rank 1] one\n"
    screen.printer.finish()
    assert screen.shown() == "[rank 1] one\n[rank 0] zero\n"


def test_several_nodes_name_the_host():
    screen = Screen(world_size=4, host="gpu07")
    screen.printer.feed(3, OUT, b"hello\n")
    assert screen.shown() == "[rank 3 gpu07] hello\n"


def test_bars_are_shown_once_a_second_and_their_end_always():
    screen = Screen(world_size=2)
    for percent in range(1, 100):
        screen.now_s += 0.1
        screen.printer.feed(0, ERR, b"\r%d%%" % percent)
        screen.printer.feed(1, ERR, b"line %d\n" % percent)
    screen.printer.feed(0, ERR, b"\r100%\nnext\n")
    shown = screen.err.getvalue().decode().splitlines()
    bar = [line for line in shown if line.startswith("[rank 0]")]
    assert len([line for line in shown if line.startswith("[rank 1]")]) == 99
    assert bar[0] == "[rank 0] 1%"
    assert bar[-2:] == ["[rank 0] 100%", "[rank 0] next"]
    assert 10 <= len(bar) <= 13


def test_the_only_rank_is_passed_through_as_it_is():
    screen = Screen(world_size=1)
    screen.printer.feed(0, OUT, b"\r 10%")
    assert screen.shown() == "\r 10%"
    screen.printer.feed(0, OUT, b"\r 20%")
    screen.printer.break_line()
    screen.printer.break_line()
    assert screen.shown() == "\r 10%\r 20%\n"
    screen.printer.feed(0, OUT, b"done\n")
    screen.printer.end(0, OUT)
    screen.printer.finish()
    assert screen.shown() == "\r 10%\r 20%\ndone\n"


def test_the_only_rank_ends_its_last_line():
    screen = Screen(world_size=1)
    screen.printer.feed(0, ERR, b"no newline")
    screen.printer.finish()
    assert screen.err.getvalue() == b"no newline\n"


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_console_that_is_gone_is_no_error(world_size):
    class Gone(io.BytesIO):
        def write(self, _data):
            raise BrokenPipeError(32, "Broken pipe")

    err = io.BytesIO()
    printer = OutputPrinter(Gone(), err, world_size=world_size, clock=lambda: 0.0)
    assert printer.problem == ""
    printer.feed(0, OUT, b"lost\n")
    printer.feed(0, ERR, b"seen\n")
    printer.finish()
    assert "Broken pipe" in printer.problem
    assert err.getvalue().endswith(b"seen\n")


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_persons_own_prefix_stands_instead_of_ours(world_size):
    screen = Screen(world_size=world_size, host="h", prefixes={0: b"[default0]:"})
    screen.printer.feed(0, OUT, b"a\nb\n")
    assert screen.shown() == "[default0]:a\n[default0]:b\n"
