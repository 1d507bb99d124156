"""The rank's end of the socket. Every call returns at once or at its limit, whatever state the agent is in."""

from __future__ import annotations

import contextlib
import select
import socket

from nvrx_async.ranklink import frames
from nvrx_async.ranklink.errors import RankLinkError
from nvrx_async.ranklink.messages import Message, StopAt, from_wire, to_wire

_CHUNK_BYTES = 1 << 16


class Link:
    """A connection to the agent, or none: an agent that is gone or full is no reason to stop training."""

    def __init__(self, path: str) -> None:
        self._decoder = frames.Decoder()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)  # noqa: FBT003 - takes no keywords
        try:
            self._socket.connect(path)
        except OSError:  # nobody listens, or its queue is full (EAGAIN): the page works without
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether the agent can be asked and can wake this rank."""
        return self._socket is not None

    def send(self, message: Message) -> None:
        """Say something if the agent takes it now; a frame that fits only in part ends the connection."""
        if self._socket is None:
            return
        frame = frames.encode(to_wire(message))
        try:
            sent = self._socket.send(frame)
        except OSError:
            sent = -1
        if sent != len(frame):
            self.close()

    def stop_within(self, timeout_s: float) -> StopAt | None:
        """Wait for the step to stop at, None if it does not come in time. Rounds are of one connection."""
        if self._socket is None:
            return None
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        if not readable:
            return None
        try:
            data = self._socket.recv(_CHUNK_BYTES)
            messages = [from_wire(raw) for raw in self._decoder.feed(data)]
        except (OSError, RankLinkError):
            data, messages = b"", []
        if not data:
            self.close()
        return next((one for one in messages if isinstance(one, StopAt)), None)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None
