"""What the word of the agent that leads counts, by its place in the last sealed world. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Node
from nvrx_async.rounds.fencing import Judge
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.world import World


@dataclass(frozen=True, slots=True)
class Speaker:
    """The agent that leads."""

    me: Identity
    mirror: Mirror

    def judge(
        self,
        nodes: Mapping[str, Node],
        world: World,
        keys: AttemptKeys,
        promised_until_s: Mapping[str, float],
    ) -> Judge:
        """What its word counts."""
        if not world.seats:
            return Judge(recorded=True, older_than_seal=True)
        mine = self._registered(nodes)
        named = world.recorded.get(mine.node_id) if mine is not None else None
        if mine is None or named is None:
            return Judge(recorded=False, older_than_seal=False)
        if named == mine.incarnation:
            held = self.mirror.get(keys.node(mine.node_id))
            older = held is not None and held.create_revision < world.sealed_at
            return Judge(recorded=True, older_than_seal=older, promised_until_s=promised_until_s)
        # A restarted agent has its predecessor's seat. It does not know what the dead one promised, and need not: it
        # calls nobody fenced before TTL + SETTLE_S + kill time in office, and those promises are over before that.
        seated = mine.succeeds == named
        return Judge(recorded=seated, older_than_seal=False, promised_until_s=promised_until_s)

    def _registered(self, nodes: Mapping[str, Node]) -> Node | None:
        mine = nodes.get(self.me.node_id)
        if mine is not None and mine.incarnation == self.me.incarnation:
            return mine
        # It was given another id.
        return next((node for node in nodes.values() if node.incarnation == self.me.incarnation), None)


def recorded_agent_lives(nodes: Mapping[str, Node], world: World) -> bool:
    """Whether an agent that the last world names is registered."""
    return any(
        node_id in nodes and nodes[node_id].incarnation == incarnation
        for node_id, incarnation in world.recorded.items()
    )
