"""Since when a coordinator has not seen recorded agents: only time that it lived through counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Node
from nvrx_async.rounds.fencing import is_present
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.world import World


class Missing:
    """See the module. One object for one term of office: what was before it, nobody watched."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[float, int]] = {}

    def note(
        self, now_s: float, nodes: dict[str, Node], world: World, mirror: Mirror, keys: AttemptKeys
    ) -> None:
        """Look at who is missing now. One that came back and went again meanwhile is missing anew."""
        known, self._since = self._since, {}
        for one in world.named:
            if is_present(one, nodes):
                continue
            who, gone_at = (one.node_id, one.incarnation), mirror.gone_at(keys.node(one.node_id))
            since_s, before = known.get(who, (now_s, gone_at))
            self._since[who] = (now_s, gone_at) if gone_at > before else (since_s, before)

    @property
    def since_s(self) -> Mapping[str, float]:
        """By node id."""
        return {node_id: since_s for (node_id, _), (since_s, _) in self._since.items()}
