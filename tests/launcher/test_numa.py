"""CPUs near a GPU, by a made-up /sys: two sockets with two NUMA nodes each, of which node 3 is not ours to use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_launcher.errors import UsageError
from nvrx_launcher.numa import cpus_of_ranks
from nvrx_launcher.slots import Gpu, Inventory

GPUS = tuple(Gpu(f"GPU-{number}", pci=f"0000:0{number}:00.0") for number in range(4))
NODES = {0: "0-1,8", 1: "2-3", 2: "4-5", 3: "6"}


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for number, node in enumerate((-1, 1, 2, 3)):
        place = tmp_path / "bus/pci/devices" / f"0000:0{number}:00.0"
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    for node, cpus in NODES.items():
        place = tmp_path / f"devices/system/node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{cpus}\n")
    for cpu in range(9):
        place = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "physical_package_id").write_text(f"{int(4 <= cpu < 8)}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5, 8})
    return tmp_path


def test_the_cpus_of_the_gpus_node(sysfs: Path) -> None:
    found = cpus_of_ranks("node", 3, None, lambda: Inventory(GPUS), sysfs)
    assert found == ((0, 1, 8), (2, 3), (4, 5))


def test_the_cpus_of_the_gpus_socket(sysfs: Path) -> None:
    found = cpus_of_ranks("socket", 2, "1,2", lambda: Inventory(GPUS), sysfs)
    assert found == ((0, 1, 2, 3, 8), (4, 5))


@pytest.mark.parametrize(
    ("mode", "slots", "visible", "message"),
    [
        ("exclusive", 1, None, "exclusive is not possible"),
        ("node", 3, "0,1", "3 ranks need a GPU each, 2 are visible here"),
        ("node", 1, "3", "no CPU of NUMA node 3 may be used"),
    ],
)
def test_what_cannot_be_bound(sysfs: Path, mode: str, slots: int, visible: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cpus_of_ranks(mode, slots, visible, lambda: Inventory(GPUS), sysfs)


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not tell which CPUs are near"):
        cpus_of_ranks("node", 1, None, lambda: Inventory(GPUS), tmp_path)
