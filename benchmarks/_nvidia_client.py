"""NVIDIA's heartbeat client with its own monitor process, in a process of its own; prints one line of JSON.

For `heartbeat.py`, which sets PYTHONPATH to where the package is. Measured as ours is; then the monitor is stopped
(SIGSTOP) and beats are counted until one blocks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from _calls import cost
from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig
from nvidia_resiliency_ext.fault_tolerance.data import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import (
    RankMonitorClient,
    RankMonitorClientError,
)
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer

BLOCKED_S, ENOUGH = 3.0, 100_000


def main() -> None:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "monitor.sock"))
        os.environ[FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR] = path
        config = FaultToleranceConfig(enable_nic_monitor=False, node_health_check_interval=3600.0)
        monitor = RankMonitorServer.run_in_subprocess(
            config, path, mp_ctx=multiprocessing.get_context("spawn")
        )
        try:
            client = RankMonitorClient()
            client.init_workload_monitoring()
            found = asdict(cost(client.send_heartbeat))
            os.kill(monitor.pid, signal.SIGSTOP)
            beats = beats_until_blocked(client)
            print(
                json.dumps({**found, "beats": beats, "version": version("nvidia-resiliency-ext")}), flush=True
            )
        finally:
            os.kill(monitor.pid, signal.SIGKILL)
            monitor.join()


def beats_until_blocked(client: RankMonitorClient) -> int:
    """How many beats a stopped monitor takes, ENOUGH if none blocks."""

    def blocked(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, blocked)
    for sent in range(ENOUGH):
        signal.setitimer(signal.ITIMER_REAL, BLOCKED_S)
        try:
            client.send_heartbeat()
        except (TimeoutError, RankMonitorClientError):  # the client wraps whatever ends its call
            return sent
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return ENOUGH


if __name__ == "__main__":
    sys.exit(main())
