"""Frames survive any cut of the stream, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_async.ranklink.errors import FrameError, MessageError
from nvrx_async.ranklink.frames import LIMIT_BYTES, Decoder, encode
from nvrx_async.ranklink.messages import Hello, StopAt, from_wire, to_wire

OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), st.integers(-5, 5) | st.text(max_size=9), max_size=4))


@given(OBJECTS, st.lists(st.integers(1, 9), min_size=1))
def test_objects_come_out_as_they_went_in_however_they_are_cut(objects, cuts):
    stream, decoder, found, at, turn = b"".join(map(encode, objects)), Decoder(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += decoder.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert found == objects


@given(st.binary(max_size=40))
def test_garbage_is_an_error_or_nothing_yet(data):
    try:
        for found in Decoder().feed(data):
            assert isinstance(found, dict)
    except FrameError:
        pass


def test_four_gigabytes_are_refused_at_the_length():
    with pytest.raises(FrameError, match="4294967295"):
        list(Decoder().feed(b"\xff\xff\xff\xff"))


def test_what_is_too_large_is_refused_before_it_is_sent():
    with pytest.raises(FrameError, match="path"):
        encode({"text": "x" * LIMIT_BYTES})


@pytest.mark.parametrize("message", [Hello("rank", 7, 1, 3), StopAt(2, 17)])
def test_messages_come_back(message):
    assert from_wire({**to_wire(message), "later": "field"}) == message


@pytest.mark.parametrize(
    "raw", [{}, {"is": "bye"}, {"is": "hello"}, {"is": "stop_at", "round": 1, "step": True}]
)
def test_what_is_no_message_is_refused(raw):
    with pytest.raises(MessageError):
        from_wire(raw)
