"""Frames between agent and keeper: u32 big-endian length, then one JSON object in UTF-8.

Text that is no valid UTF-8 (a variable of the environment, say) travels as lone surrogates, which JSON
escapes: what the agent read is what the rank gets, byte for byte.
"""

from __future__ import annotations

import json
import struct

from .errors import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would cost the keeper a megabyte
    from collections.abc import Iterator
    from typing import Any

LIMIT_BYTES = 16 << 20
"""Largest frame. A start carries one whole environment per rank, each up to 2 MiB by the kernel's limit."""

_LENGTH = struct.Struct(">I")


def encode(message: dict[str, Any]) -> bytes:
    """One frame.

    Raises:
        FrameError: the message is larger than LIMIT_BYTES.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > LIMIT_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes is over the limit of {LIMIT_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Every message that is complete with `data`.

        Raises:
            FrameError: too long, or no JSON object.
        """
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._pending)
            if size > LIMIT_BYTES:
                raise FrameError(f"a frame announces {size} bytes, the limit is {LIMIT_BYTES}")
            end = _LENGTH.size + size
            if len(self._pending) < end:
                return
            body = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield _object(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise FrameError(f"a frame holds no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame holds {type(message).__name__}, not an object")
    return message
