"""What the word of the agent that leads counts, by its place in the last sealed world. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import JobSpec, Node
from nvrx_async.rounds.events import Now
from nvrx_async.rounds.fencing import SETTLE_S, Judge
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.world import World


@dataclass(frozen=True, slots=True)
class Speaker:
    """The agent that leads."""

    me: Identity
    spec: JobSpec
    mirror: Mirror

    def judge(
        self,
        now: Now,
        nodes: Mapping[str, Node],
        world: World,
        keys: AttemptKeys,
        promised_until_s: Mapping[str, float],
    ) -> tuple[Judge, float | None]:
        """Its word, and when it will count for more (None: not by time)."""
        if not world.seats:
            return Judge(recorded=True, older_than_seal=True), None
        mine = self._registered(nodes)
        if mine is None:
            return Judge(recorded=False, older_than_seal=False), None
        named = world.recorded.get(mine.node_id)
        if named == mine.incarnation:
            held = self.mirror.get(keys.node(mine.node_id))
            older = held is not None and held.create_revision < world.sealed_at
            return Judge(recorded=True, older_than_seal=older, promised_until_s=promised_until_s), None
        if named is None or mine.succeeds != named:
            return Judge(recorded=False, older_than_seal=False), None
        # A restarted agent takes its predecessor's seat once no promise the dead one gave can still count.
        seat_at_s = self.me.started_s + SETTLE_S + self.spec.kill_time_s
        seated = now.s >= seat_at_s
        word = Judge(recorded=seated, older_than_seal=False, promised_until_s=promised_until_s)
        return word, None if seated else seat_at_s

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
