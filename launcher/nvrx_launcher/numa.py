"""Which CPUs lie near a rank's GPU (`--numa-binding`), by what the kernel tells under /sys.

`/sys/bus/pci/devices/<address>/numa_node` (-1 on machines with one node), `/sys/devices/system/node/node<n>/cpulist`,
`/sys/devices/system/cpu/cpu<n>/topology/physical_package_id`. As with torchrun, local rank n has the n-th visible GPU.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from nvrx_launcher.errors import UsageError
from nvrx_launcher.slots import Gpu, ListGpus, visible_devices

SYSFS = Path("/sys")
_BOUND = ("node", "socket")


def cpus_of_ranks(
    mode: str, slots: int, visible: str | None, list_gpus: ListGpus, sysfs: Path = SYSFS
) -> tuple[tuple[int, ...], ...]:
    """The CPUs of each local rank; `visible` is CUDA_VISIBLE_DEVICES.

    Raises:
        UsageError: another mode, fewer GPUs than ranks, or the kernel does not tell.
    """
    if mode not in _BOUND:
        raise UsageError(
            f"--numa-binding {mode} is not possible: ranks are bound to a whole NUMA node or socket",
            "--numa-binding node, or bind them in the command: --no-python numactl ... python train.py",
        )
    inventory = list_gpus()
    gpus = [gpu for gpu in visible_devices(inventory.gpus, visible) if isinstance(gpu, Gpu) and gpu.pci]
    if len(gpus) < slots:
        why = f" ({inventory.problem})" if inventory.problem else ""
        raise UsageError(
            f"--numa-binding {mode}: {slots} ranks need a GPU each, {len(gpus)} are visible here{why}",
            "leave it out where ranks have no GPU of their own",
        )
    allowed = os.sched_getaffinity(0)
    try:
        return tuple(tuple(sorted(near(gpu.pci, mode, allowed, sysfs))) for gpu in gpus[:slots])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--numa-binding {mode}: the kernel does not tell which CPUs are near a GPU: {error}",
            "leave it out",
        ) from error


def near(pci: str, mode: str, allowed: Collection[int], sysfs: Path) -> frozenset[int]:
    """Allowed CPUs of the NUMA node of a device, with `socket` of all nodes of its socket.

    Raises:
        OSError: a file is missing.
        ValueError: a file holds something else, or no CPU of the node is allowed.
    """
    node = max(int(_read(sysfs / "bus/pci/devices" / pci / "numa_node")), 0)
    found = _of_node(node, sysfs) & frozenset(allowed)
    if not found:
        raise ValueError(f"no CPU of NUMA node {node} may be used by this process")
    if mode == "node":
        return found
    socket = _socket(min(found), sysfs)
    return frozenset(cpu for cpu in allowed if _socket(cpu, sysfs) == socket)


def _of_node(node: int, sysfs: Path) -> frozenset[int]:
    ranges = _read(sysfs / f"devices/system/node/node{node}/cpulist").split(",")
    ends = [
        (int(first), int(last or first)) for first, _, last in (one.partition("-") for one in ranges if one)
    ]
    return frozenset(cpu for first, last in ends for cpu in range(first, last + 1))


def _socket(cpu: int, sysfs: Path) -> int:
    return int(_read(sysfs / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id"))


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
