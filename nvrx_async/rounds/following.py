"""Which keys of etcd a member follows."""

from __future__ import annotations

from nvrx_async.etcd.types import Scope
from nvrx_async.job.keys import current
from nvrx_async.job.records import Phase, Round
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.registration import Registration


class Following:
    """Which keys a registered member follows, found anew only when its round changes."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._found_for: tuple[Registration, int] | None = None
        self._found: frozenset[Scope] = frozenset()

    def scopes(self, registered: Registration) -> frozenset[Scope]:
        """A handful of single keys."""
        now_for = (registered, self._mirror.revision(registered.keys.round))
        if now_for != self._found_for:
            self._found_for, self._found = now_for, self._find(registered)
        return self._found

    def _find(self, registered: Registration) -> frozenset[Scope]:
        keys, node_id = registered.keys, registered.node.node_id
        single = {current(keys.run_id), keys.outcome, keys.round, keys.node(node_id)}
        now_round = self._mirror.record(Round, keys.round)
        if now_round is None:
            return frozenset(map(Scope, single))
        number = now_round.number
        single.add(keys.interrupt(number))
        if now_round.phase is not Phase.FORMING:
            # The next interrupt is known before it is needed: between two rounds only the assignment is read.
            single.add(keys.interrupt(number + 1))
        if now_round.token is not None:
            single.add(keys.assignment(number, now_round.token, node_id))
        return frozenset(map(Scope, single))
