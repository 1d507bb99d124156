"""Frames of the socket: length as u32 big-endian, then one JSON object of at most 1 MiB.

Larger things travel as a path and a digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from nvrx_async.ranklink.errors import FrameError

LIMIT_BYTES = 1 << 20
HEAD_BYTES = 4


def encode(fields: Mapping[str, Any]) -> bytes:
    """One frame.

    Raises:
        FrameError: the object is larger than 1 MiB.
    """
    body = orjson.dumps(fields)
    if len(body) > LIMIT_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes; {LIMIT_BYTES} is the limit: send a path instead")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


class Decoder:
    """Cuts a stream of bytes into objects. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """All objects that are complete now.

        Raises:
            FrameError: a length above the limit, or a body that is no JSON object.
        """
        self._held += data
        while len(self._held) >= HEAD_BYTES:
            size = int.from_bytes(self._held[:HEAD_BYTES], "big")
            if size > LIMIT_BYTES:
                raise FrameError(f"a frame says it has {size} bytes; {LIMIT_BYTES} is the limit")
            if len(self._held) < HEAD_BYTES + size:
                return
            body = bytes(self._held[HEAD_BYTES : HEAD_BYTES + size])
            del self._held[: HEAD_BYTES + size]
            yield _object(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"a frame holds no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise FrameError(f"a frame holds {type(fields).__name__}, not an object")
    return fields
