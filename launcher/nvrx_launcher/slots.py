"""How many ranks `--nproc-per-node gpu|cpu|auto` means on this node.

GPUs are counted as a CUDA process would enumerate them (CUDA C++ programming guide, "CUDA environment
variables"; MIG user guide, "CUDA device enumeration"), but without starting CUDA.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvrx_launcher.errors import UsageError

_LEADING_INTEGER = re.compile(r"\s*([+-]?\d+)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this node. `mig` is None without MIG mode, else the UUIDs of its MIG devices, maybe none.

    `pci` is its address as /sys writes it, `0000:dc:00.0`.
    """

    uuid: str
    mig: tuple[str, ...] | None = None
    pci: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs in NVML's order; `problem` says why none could be listed."""

    gpus: tuple[Gpu, ...]
    problem: str = ""


ListGpus = Callable[[], Inventory]


def count_slots(word: str, visible: str | None, list_gpus: ListGpus) -> int:
    """Ranks for `gpu`, `cpu` or `auto`; `visible` is CUDA_VISIBLE_DEVICES, None when unset.

    Raises:
        UsageError: `gpu` where no GPU is visible.
    """
    if word == "cpu":
        return cpu_count()
    inventory = list_gpus()
    count = count_visible(inventory.gpus, visible)
    if count:
        return count
    if word == "auto":
        return cpu_count()
    raise UsageError(
        f"--nproc-per-node gpu: no GPU is visible here ({_why_none(inventory, visible)})",
        "--nproc-per-node cpu, auto or a number starts ranks without GPUs; nvidia-smi -L lists GPUs",
    )


def cpu_count() -> int:
    """CPUs that this process may use: its affinity mask, as torchrun counts them."""
    return len(os.sched_getaffinity(0))


def count_visible(gpus: Sequence[Gpu], visible: str | None) -> int:
    """Devices that CUDA would enumerate.

    One MIG device at most, and no whole GPU beside it: that is all a CUDA process can use.
    """
    chosen = visible_devices(gpus, visible)
    if any(isinstance(device, str) for device in chosen):
        return 1
    return len(chosen)


def visible_devices(gpus: Sequence[Gpu], visible: str | None) -> Sequence[Gpu | str]:
    """GPUs, and UUIDs of MIG devices, that CUDA_VISIBLE_DEVICES leaves, in its order."""
    return _unmasked(gpus) if visible is None else _masked(gpus, visible.strip())


def _unmasked(gpus: Sequence[Gpu]) -> Sequence[Gpu | str]:
    return [device for gpu in gpus for device in _devices(gpu)]


def _devices(gpu: Gpu) -> Sequence[Gpu | str]:
    """What CUDA can use of a GPU: itself, or its MIG devices."""
    return [gpu] if gpu.mig is None else list(gpu.mig)


def _masked(gpus: Sequence[Gpu], visible: str) -> Sequence[Gpu | str]:
    """The devices a mask names. Its first invalid entry ends it, a repeated one empties it."""
    chosen: list[Gpu | str] = []
    named: list[int | str] = []
    by_uuid = visible.startswith(("GPU-", "MIG-"))
    for entry in visible.split(","):
        name = entry.strip() if by_uuid else _ordinal(entry)
        device = _by_uuid(gpus, str(name), visible[:4]) if by_uuid else _by_ordinal(gpus, name)
        if not device:
            break
        if name in named:
            return []
        named.append(name)
        chosen.extend(device)
    return chosen


def _ordinal(entry: str) -> int:
    """The integer an entry begins with, as C's strtol reads it; -1 when there is none."""
    found = _LEADING_INTEGER.match(entry)
    return int(found[1]) if found else -1


def _by_ordinal(gpus: Sequence[Gpu], ordinal: int | str) -> Sequence[Gpu | str]:
    if isinstance(ordinal, str) or not 0 <= ordinal < len(gpus):
        return []
    return _devices(gpus[ordinal])


def _by_uuid(gpus: Sequence[Gpu], name: str, prefix: str) -> Sequence[Gpu | str]:
    """The device whose UUID begins with the name, if exactly one does."""
    if not name.startswith(prefix):
        return []
    if prefix == "MIG-":
        slices = [uuid for gpu in gpus for uuid in gpu.mig or () if uuid.startswith(name)]
        return slices if len(slices) == 1 else []
    whole = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    return _devices(whole[0]) if len(whole) == 1 else []


def _why_none(inventory: Inventory, visible: str | None) -> str:
    if inventory.gpus and visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} leaves none of {len(inventory.gpus)}"
    return inventory.problem or "NVML lists none"
