"""Whole jobs whose log disk stops answering. Its parts, in short, are in tests/launcher/test_stuck_disks.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.frozen_disk import Disk, mounted_disk, waits_for_it
from support.stage import Stage

OPTIONS = ("--nnodes", "1:2", "--nproc-per-node", "1", "--lease-ttl", "3", "--max-restarts", "2",
           "--workers-stop-timeout", "1", "--warm-workers", "off")  # fmt: skip
WRITES = """
import os, time
print("up", os.environ["NVRX_ROUND"], os.getpid(), flush=True)
while os.environ["NVRX_NODE_ID"] == "n1" or not os.path.exists("{end}"):
    if os.environ["NVRX_NODE_ID"] == "n1":
        print("x" * 10_000, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted_disk(tmp_path) as found:
        yield found


@pytest.mark.timeout(120)
@pytest.mark.soak
def test_60_a_node_whose_log_disk_never_answers_is_left_and_the_others_go_on(job: Stage, disk: Disk) -> None:
    end = job.folder / "end"
    program = job.folder / "writes.py"
    program.write_text(WRITES.format(end=end))
    stays = job.launch(str(program), node="n0", options=OPTIONS)
    stuck = job.launch(
        str(program), node="n1", options=(*OPTIONS, "--log-dir", str(disk.folder), "--redirects", "3")
    )
    stays.says("round 0 runs: 2 ranks on 2 nodes")
    mine = int(stays.says(r"up 0 (\d+)")[1])
    logs = disk.folder / job.run_id / "attempt_0" / "round_0"
    job.until(
        lambda: any(path.stat().st_size > 10_000 for path in logs.glob("rank_*/stdout.log")), "it writes"
    )
    victim = int(next(logs.glob("rank_*/stdout.log")).read_text().split()[2])
    theirs = job.watch(victim)
    disk.freeze()
    keeper = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
    job.until(lambda: waits_for_it(keeper), "its keeper waits for the disk")
    os.kill(mine, signal.SIGKILL)
    stuck.says("this node joins no more", bound_s=60)
    assert not theirs.alive
    assert waits_for_it(keeper)
    assert any(key.endswith("nodes/n1") for key in job.held()), "its agent renews its lease"
    stays.says("round 1 runs: 1 rank on 1 node", bound_s=30)
    disk.thaw()
    end.touch()
    assert stays.ends() == 0, job.told()
    assert stuck.ends() == 0, job.told()
