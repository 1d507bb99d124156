"""A training by the calls of NVIDIA's client, without torch: `nvrx_training.py HANGS`. In round 0 rank 1 stands still.

HANGS: `section` (in a step), `heartbeat` (between two beats), `setup` (works longer than the limit of all else, within
that of its own), `never` (no call at all, longer than a start may take). Longer than all that has a limit take `saves`
(a section without one), `late` (rank 1 connects late), `ends` (after the client's end).
"""

from __future__ import annotations

import os
import sys
import time

from nvrx_async.ranklink.rank_legacy import RankMonitorClient

STEPS, STEP_S, SETUP_S, FOR_EVER_S = 20, 0.02, 4.0, 1e6


def main() -> None:
    case, first = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    stands = first and os.environ["RANK"] == "1"
    if case == "never":
        time.sleep(SETUP_S)
        return
    if case == "late" and os.environ["RANK"] == "1":
        time.sleep(SETUP_S)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("setup")
    if case == "setup":
        time.sleep(SETUP_S)
    client.end_section("setup")
    for step in range(STEPS):
        client.start_section("step")
        time.sleep(STEP_S)
        if stands and case == "section" and step == STEPS // 2:
            time.sleep(FOR_EVER_S)
        client.end_section("step")
        client.send_heartbeat()
        if stands and case == "heartbeat" and step == STEPS // 2:
            time.sleep(FOR_EVER_S)
    if case == "saves":
        client.start_section("checkpointing")
        time.sleep(SETUP_S)
        client.end_section("checkpointing")
    client.shutdown_workload_monitoring()
    if case == "ends":
        time.sleep(SETUP_S)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
