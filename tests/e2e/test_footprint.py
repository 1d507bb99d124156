"""What agent and keeper of eight ranks take, and what they must never load."""

from __future__ import annotations

from support import footprint
from support.stage import Stage

LIMIT_BYTES = 75 * 1_000_000


def test_agent_and_keeper_of_eight_ranks_are_small_and_load_no_torch(job: Stage) -> None:
    agent = job.launch(options=("--nproc-per-node", "8"))
    ranks = job.up(0, 8)
    keeper = agent.keeper()
    assert footprint.pss_bytes(agent.pid) + footprint.pss_bytes(keeper) <= LIMIT_BYTES
    assert footprint.rss_bytes(agent.pid) + footprint.rss_bytes(keeper) <= LIMIT_BYTES

    ours, its = footprint.libraries(agent.pid), footprint.libraries(keeper)
    assert any(name.startswith("libc.so") for name in ours & its), "maps are read"
    assert not [name for name in ours | its if "torch" in name or "numpy" in name]
    assert any("cygrpc" in name for name in ours)
    assert not [name for name in its if "grpc" in name]

    job.finish(ranks)
    assert agent.ends() == 0, job.told()
