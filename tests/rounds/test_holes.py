"""Holes that a first version of the round protocol had, each as a directed schedule (`sim/`).

Where it is cheap, a test also takes the rule away and sees the hole open, so that the schedule is known to
reach it. In this version nobody runs past T: the rules that exist for running past T (promises) are tried with
keepers that kill that much too late.
"""

from __future__ import annotations

from rounds.sim.schedule import Fault, play
from rounds.sim.world import Setup


def test_an_outage_beyond_the_ttl_after_which_etcd_still_holds_the_old_leases() -> None:
    """The session gives its lease up after a TTL of silence; etcd comes back and gives each lease a new TTL.

    The next life of the same process finds its node id held by its own earlier life, whose process lives.
    """
    for seed in range(5):
        world = play(Setup(fixed_ids=seed % 2 == 0), seed, [Fault(8.0, "outage", 0, 8.0)])
        assert [agent.exit_code for agent in world.everyone] == [0, 0]
