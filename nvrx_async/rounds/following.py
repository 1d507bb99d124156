"""Which keys of etcd a member follows."""

from __future__ import annotations

from nvrx_async.etcd.types import Scope
from nvrx_async.job.keys import current
from nvrx_async.job.records import JobSpec, Round
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.promises import MOST_ASKED
from nvrx_async.rounds.registration import Registration
from nvrx_async.rounds.world import seal_of


class Following:
    """Which keys a registered member follows, found anew only when its seat may have moved."""

    def __init__(self, mirror: Mirror, spec: JobSpec) -> None:
        self._mirror = mirror
        self._spec = spec
        self._round_at = -1
        self._found_for: tuple[Registration, tuple[int, str] | None] | None = None
        self._found: frozenset[Scope] = frozenset()

    def scopes(self, registered: Registration) -> frozenset[Scope]:
        """A handful of keys, the same from round to round while nobody moves."""
        round_at = self._mirror.revision(registered.keys.round)
        if round_at != self._round_at:
            self._round_at = round_at
            now_round = self._mirror.record(Round, registered.keys.round)
            now_for = (registered, seal_of(now_round) if now_round is not None else None)
            if now_for != self._found_for:
                self._found_for, self._found = now_for, self._find(*now_for)
        return self._found

    def _find(self, registered: Registration, seal: tuple[int, str] | None) -> frozenset[Scope]:
        keys, node_id = registered.keys, registered.node.node_id
        followed = {Scope(current(keys.run_id)), Scope(keys.outcome), Scope(keys.round), keys.interrupts}
        followed.add(Scope(keys.node(node_id)))
        if seal is not None:
            followed.add(Scope(keys.assignment(*seal, node_id)))
            if self._spec.outage_limit_s > 0 and self._spec.max_nodes <= MOST_ASKED:
                # Whom to ask when etcd does not answer must be known by then.
                followed |= {keys.worlds(*seal), keys.all_struck(seal[0])}
        return frozenset(followed)
