"""Versions of what training runs on, by their metadata: nothing is imported. And the GPUs, by NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata

from nvrx_launcher import nvml
from nvrx_launcher.ctl.checks.finding import Finding, Grade, numbers
from nvrx_launcher.slots import Inventory

OLDEST_TORCH = (2, 6)
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
NCCL_SEGFAULTS = ((2, 28, 3), (2, 28, 9))
"""A communicator that is aborted crashes the process: from the first up to, not with, the second."""
NCCL_OLDEST = (2, 26, 2)
Version = Callable[[str], str]


def package_findings(
    version: Version = metadata.version, list_gpus: Callable[[], Inventory] = nvml.list_gpus
) -> list[Finding]:
    """torch, NCCL, GPUs."""
    return [_torch(version), *_nccl(version), _gpus(list_gpus())]


def _torch(version: Version) -> Finding:
    try:
        found = version("torch")
    except metadata.PackageNotFoundError:
        return Finding(
            "torch", Grade.NOTE, "not installed beside nvrx", "fine if training runs in another environment"
        )
    if numbers(found) < OLDEST_TORCH:
        return Finding(
            "torch", Grade.WARN, found, "nvrx-async is tested with 2.6 and newer: pip install -U torch"
        )
    return Finding("torch", Grade.OK, found)


def _nccl(version: Version) -> Iterator[Finding]:
    for package in NCCL_PACKAGES:
        try:
            found = version(package)
        except metadata.PackageNotFoundError:
            continue
        parsed = numbers(found)
        if NCCL_SEGFAULTS[0] <= parsed < NCCL_SEGFAULTS[1]:
            hint = f"an aborted communicator crashes: pip install -U '{package}>=2.28.9'"
            yield Finding("NCCL", Grade.WARN, found, hint)
        elif parsed < NCCL_OLDEST:
            hint = f"in-process restarts need 2.26.2 or newer: pip install -U {package}"
            yield Finding("NCCL", Grade.NOTE, found, hint)
        else:
            yield Finding("NCCL", Grade.OK, found)
        return
    yield Finding("NCCL", Grade.NOTE, "no package of it is installed (CPU build, or part of an image)")


def _gpus(found: Inventory) -> Finding:
    if not found.gpus:
        hint = "training on CPUs needs none; else see nvidia-smi, and whether the container was given GPUs"
        return Finding("GPUs", Grade.NOTE, f"none: {found.problem or 'NVML lists no device'}", hint)
    sliced = sum(gpu.mig is not None for gpu in found.gpus)
    mig = f", {sliced} of them sliced (MIG)" if sliced else ""
    return Finding("GPUs", Grade.OK, f"{len(found.gpus)}{mig}")
