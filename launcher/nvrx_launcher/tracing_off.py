"""What the agent asks of its telemetry, and telemetry that is off."""

from __future__ import annotations

from typing import Protocol

from nvrx_async.rounds.drivers import Ranks, Store
from nvrx_async.rounds.effects import Machine, Notice
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_launcher.rank_watch import RankWatch


class Tracing(Protocol):
    """What the agent asks of its telemetry, on or off."""

    @property
    def watch_kind(self) -> type[RankWatch]:
        """What the watch over this node's ranks is to be."""

    def attend(self, watch: RankWatch) -> None:
        """The watch that was made of it."""

    def life(self, me: Identity, mirror: Mirror) -> tuple[Machine, ...]:
        """A life begins: machines that look on, to stand before the others."""

    def store(self, store: Store) -> Store:
        """The store as the interpreter is to use it."""

    def ranks(self, ranks: Ranks) -> Ranks:
        """The ranks as the interpreter is to use them."""

    def notice(self, notice: Notice) -> None:
        """People are told something."""

    def renewed(self, sent_at_s: float) -> None:
        """The lease was renewed by a request sent then."""

    def tagged(self, sentence: str) -> str:
        """A line of the log with the ids by which its trace is found."""

    async def serve(self) -> None:
        """Send and measure until cancelled."""

    async def close(self) -> None:
        """Send what is left, for a bounded time."""


class Untraced:
    """Telemetry that is off: everything passes as it is."""

    @property
    def watch_kind(self) -> type[RankWatch]:
        """See `Tracing`."""
        return RankWatch

    def attend(self, watch: RankWatch) -> None:
        """See `Tracing`."""

    def life(self, me: Identity, mirror: Mirror) -> tuple[Machine, ...]:
        """See `Tracing`."""
        del me, mirror
        return ()

    def store(self, store: Store) -> Store:
        """See `Tracing`."""
        return store

    def ranks(self, ranks: Ranks) -> Ranks:
        """See `Tracing`."""
        return ranks

    def notice(self, notice: Notice) -> None:
        """See `Tracing`."""

    def renewed(self, sent_at_s: float) -> None:
        """See `Tracing`."""

    def tagged(self, sentence: str) -> str:
        """See `Tracing`."""
        return sentence

    async def serve(self) -> None:
        """See `Tracing`."""

    async def close(self) -> None:
        """See `Tracing`."""
