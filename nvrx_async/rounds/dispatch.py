"""What the coordinator machine wants done: gathered in one decision, with what was said and sent before. Pure."""

from __future__ import annotations

from nvrx_async.etcd.types import Txn
from nvrx_async.rounds.effects import Commit, Decision, Effect, Notify, Waiting
from nvrx_async.rounds.seal import Wait


class Dispatch:
    """See the module.

    Attributes:
        in_flight: tag of the commit under way.
        told: the last sentence that people were told.
    """

    def __init__(self) -> None:
        self.in_flight: str | None = None
        self.told: str | None = None
        self._effects: list[Effect] = []
        self._wake_at_s: float | None = None

    def begin(self) -> None:
        """A decision begins with nothing."""
        self._effects, self._wake_at_s = [], None

    def decision(self, reason: str) -> Decision:
        """All that was wanted since it began."""
        return Decision(tuple(self._effects), self._wake_at_s, reason)

    def add(self, effect: Effect) -> None:
        """This is wanted."""
        self._effects.append(effect)

    def commit(self, tag: str, *txns: Txn) -> None:
        """These are to be committed, in order; nothing is decided before they are."""
        self.in_flight = tag
        self.add(Commit(tag, txns))

    def wait(self, wait: Wait, sentence: str | None) -> None:
        """Decide again when the wait is over at the latest, and tell people, if there is something to say."""
        self.wake(wait.until_s)
        self.tell(sentence, wait.until_s)

    def tell(self, sentence: str | None, until_s: float | None) -> None:
        """Tell people, unless that was the last thing that they were told."""
        if sentence is not None and sentence != self.told:
            self.told = sentence
            self.add(Notify(Waiting(sentence, until_s)))

    def wake(self, at_s: float | None) -> None:
        """Decide again then, or earlier; None for no such moment."""
        if at_s is not None:
            self._wake_at_s = at_s if self._wake_at_s is None else min(self._wake_at_s, at_s)
