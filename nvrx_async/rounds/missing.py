"""Since when a coordinator has not seen recorded agents: only time that it lived through counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Node
from nvrx_async.rounds.events import Now
from nvrx_async.rounds.fencing import is_present
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.world import World


class Missing:
    """See the module. One object for one term of office: what was before it, nobody watched."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[Now, int]] = {}

    def note(self, now: Now, nodes: dict[str, Node], world: World, mirror: Mirror, keys: AttemptKeys) -> None:
        """Look at who is missing now. One that came back and went again meanwhile is missing anew."""
        known, self._since = self._since, {}
        for one in world.named:
            if is_present(one, nodes):
                continue
            who, gone_at = (one.node_id, one.incarnation), mirror.gone_at(keys.node(one.node_id))
            since, before = known.get(who, (now, gone_at))
            self._since[who] = (now, gone_at) if gone_at > before else (since, before)

    @property
    def since(self) -> Mapping[str, Now]:
        """By node id."""
        return {node_id: since for (node_id, _), (since, _) in self._since.items()}

    @property
    def since_s(self) -> Mapping[str, float]:
        """By node id."""
        return {node_id: since.s for node_id, since in self.since.items()}
