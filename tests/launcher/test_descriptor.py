"""The console below Python's buffers: everything arrives, in pieces that end with a line."""

from __future__ import annotations

import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from nvrx_launcher.descriptor import PIECE_BYTES, UNDIVIDED_BYTES, Descriptor, console


def test_pieces_end_with_a_line_and_are_counted() -> None:
    pieces: list[bytes] = []

    def put(data: memoryview) -> int:
        pieces.append(bytes(data))
        return len(data)

    made = Descriptor(put)
    text = b"".join(b"%06d\n" % number for number in range(5000))
    assert made.write(text) == len(text) == made.written_bytes
    assert b"".join(pieces) == text
    assert all(piece.endswith(b"\n") and len(piece) <= PIECE_BYTES for piece in pieces)


def test_where_both_streams_are_one_pipe_it_takes_each_piece_undivided() -> None:
    reader, writer = os.pipe()
    with (
        os.fdopen(writer, "w") as one,
        os.fdopen(os.dup(writer), "w") as other,
        open(os.devnull, "w") as apart,
    ):
        assert {made._piece_bytes for made in console(one, other)} == {UNDIVIDED_BYTES}
        assert {made._piece_bytes for made in console(one, apart)} == {PIECE_BYTES}
    os.close(reader)


def test_a_line_longer_than_a_piece_and_a_console_that_takes_a_part() -> None:
    got = bytearray()

    def put(data: memoryview) -> int:
        got.extend(data[:1000])
        return min(len(data), 1000)

    text = b"x" * (3 * PIECE_BYTES) + b"\nend"
    made = Descriptor(put)
    assert made.write(text) == len(text)
    assert bytes(got) == text


def test_text_is_written_at_once_and_closing_it_closes_nothing() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="ascii", errors="backslashreplace") as stream:
        text = console(stream, stream)[0].text(stream)
        text.write("größe\n")
        assert os.read(reader, 100) == b"gr\\xf6\\xdfe\n"
        text.close()
        os.write(stream.fileno(), b"still open")
    os.close(reader)


def test_a_reader_that_is_gone_is_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, pytest.raises(BrokenPipeError):
        console(stream, stream)[0].write(b"nobody")


def test_a_stream_without_a_descriptor_takes_it_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", notebook)
    console(sys.stdout, sys.stderr)[0].write(b"a cell")
    assert notebook.buffer.getvalue() == b"a cell"  # type: ignore[attr-defined]  # it is a BytesIO


def test_a_console_that_somebody_made_non_blocking_gets_everything() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = b"".join(b"%06d\n" % number for number in range(50000))
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb") as other_end, ThreadPoolExecutor() as pool:
        written = pool.submit(console(stream, stream)[0].write, text)
        assert other_end.read(len(text)) == text
        assert written.result() == len(text)
