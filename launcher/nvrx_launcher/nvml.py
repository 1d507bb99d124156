"""The GPUs of this node, as NVML lists them. The only module that touches pynvml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvrx_launcher.slots import Gpu, Inventory

if TYPE_CHECKING:
    from types import ModuleType


def list_gpus() -> Inventory:
    """All GPUs; none, with the reason, where there is no driver or no pynvml. Starts no CUDA context."""
    try:
        import pynvml  # noqa: PLC0415 - 20 ms that only jobs with counted GPUs pay
    except ImportError as error:
        return Inventory((), f"nvidia-ml-py is not installed: {error}")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Inventory((), f"NVML: {error}")
    try:
        return Inventory(tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())))
    except pynvml.NVMLError as error:
        return Inventory((), f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(_text(nvml.nvmlDeviceGetUUID(handle)), _mig(nvml, handle), _pci(nvml, handle))


def _pci(nvml: ModuleType, handle: Any) -> str:
    """NVML writes eight digits of the domain in capitals, the kernel four in small letters."""
    try:
        address = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    except nvml.NVMLError:
        return ""
    return address.lower()[-len("0000:00:00.0") :]


def _mig(nvml: ModuleType, handle: Any) -> tuple[str, ...] | None:
    try:
        mode, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return None  # GPUs before Ampere do not know MIG
    if mode != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slice_handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:
            continue  # a place without an instance
        found.append(_text(nvml.nvmlDeviceGetUUID(slice_handle)))
    return tuple(found)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
