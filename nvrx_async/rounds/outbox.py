"""What the member machine wants done: gathered in one decision, with what was said and sent before. Pure."""

from __future__ import annotations

from nvrx_async.etcd.types import Txn
from nvrx_async.rounds.effects import Commit, Decision, Effect, Finish, Notice, Notify
from nvrx_async.rounds.own import InFlight


class Outbox:
    """See the module.

    Attributes:
        stands: whether the registration stands; while it does not, nothing is committed but that it shall (`again`).
        in_flight: the commit under way.
        finished: the life is over.
    """

    def __init__(self) -> None:
        self.stands = True
        self.in_flight: InFlight | None = None
        self.finished = False
        self._told: set[object] = set()
        self._effects: list[Effect] = []
        self._wake_at_s: float | None = None

    def begin(self) -> None:
        """A decision begins with nothing."""
        self._effects, self._wake_at_s = [], None

    def decision(self, reason: str) -> Decision:
        """All that was wanted since it began."""
        return Decision(tuple(self._effects), self._wake_at_s, reason)

    def add(self, *effects: Effect) -> None:
        """These are wanted."""
        self._effects += effects

    def commit(self, tag: str, txn: Txn, number: int = -1, *, joins: int = -1) -> None:
        """One commit at a time: the next is decided on what the last one changed."""
        if self.in_flight is None and (self.stands or tag == "again"):
            self.in_flight = InFlight(tag, number, joins)
            self.add(Commit(tag, (txn,)))

    def answered(self, tag: str) -> InFlight | None:
        """The commit that was under way, if this is its answer."""
        if self.in_flight is None or tag != self.in_flight.tag:
            return None
        committed, self.in_flight = self.in_flight, None
        return committed

    def finish(self, code: int, reason: str, *, again: bool = False) -> str:
        """This life ends; returns the reason."""
        self.finished = True
        self.add(Finish(code, reason, again))
        return reason

    def wake(self, at_s: float | None) -> None:
        """Decide again then, or earlier; None for no such moment."""
        if at_s is not None:
            self._wake_at_s = at_s if self._wake_at_s is None else min(self._wake_at_s, at_s)

    def tell_once(self, what: object, notice: Notice) -> None:
        """Tell people, unless they were told of `what`."""
        if what not in self._told:
            self._told.add(what)
            self.add(Notify(notice))
