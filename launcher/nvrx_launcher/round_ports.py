"""Ports that this node holds for the store of rounds."""

from __future__ import annotations

from nvrx_launcher.errors import RequeueError
from nvrx_launcher.ports import ReservedPort, reserve_port


class RoundPorts:
    """One for each round that may become the next one."""

    def __init__(self) -> None:
        self._held: dict[int, ReservedPort] = {}

    def reserve(self, number: int) -> int:
        """Hold a port for this round, the same one when asked again; give back those of rounds before the last.

        Raises:
            RequeueError: there is none to have.
        """
        for old in [held for held in self._held if held < number - 1]:
            self._held.pop(old).close()
        if number not in self._held:
            try:
                self._held[number] = reserve_port()
            except OSError as error:
                raise RequeueError(
                    f"this node cannot hold a port for the ranks' store: {error}",
                    "see ulimit -n and the free ports",
                ) from error
        return self._held[number].port

    def close(self) -> None:
        """Give all of them back."""
        for port in self._held.values():
            port.close()
