"""NVML behind its boundary, with a library that is made up."""

# ruff: noqa: N802 - NVML names its functions
from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from nvrx_launcher import nvml
from nvrx_launcher.slots import Gpu, Inventory


class FakeNvml(ModuleType):
    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def __init__(self, gpus, *, loads=True):
        super().__init__("pynvml")
        self.gpus = gpus
        self.loads = loads
        self.open = 0

    def nvmlInit(self):
        if not self.loads:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle):
        return handle if isinstance(handle, str) else handle["uuid"]

    def nvmlDeviceGetPciInfo(self, handle):
        if not isinstance(handle, dict) or "bus" not in handle:
            raise self.NVMLError("Unknown Error")
        return SimpleNamespace(busId=handle["bus"])

    def nvmlDeviceGetMigMode(self, handle):
        if "mig" not in handle:
            raise self.NVMLError("Not Supported")
        return int(handle["mig"] is not None), 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return len(handle["mig"])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if handle["mig"][index] is None:
            raise self.NVMLError("Not Found")
        return handle["mig"][index]


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        ([], ()),
        ([{"uuid": "GPU-a"}], (Gpu("GPU-a"),)),
        ([{"uuid": "GPU-a", "mig": None}, {"uuid": b"GPU-b"}], (Gpu("GPU-a"), Gpu("GPU-b"))),
        ([{"uuid": "GPU-a", "mig": ["MIG-1", None, "MIG-3"]}], (Gpu("GPU-a", ("MIG-1", "MIG-3")),)),
    ],
)
def test_gpus(monkeypatch, gpus, found):
    fake = FakeNvml(gpus)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert nvml.list_gpus() == Inventory(found)
    assert fake.open == 0


def test_no_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([], loads=False))
    assert nvml.list_gpus() == Inventory((), "NVML: Driver Not Loaded")


def test_an_error_on_the_way_closes_nvml(monkeypatch):
    fake = FakeNvml([{"uuid": "GPU-a"}])
    monkeypatch.setitem(sys.modules, "pynvml", fake)

    def lost(_handle):
        raise fake.NVMLError("GPU is lost")

    monkeypatch.setattr(fake, "nvmlDeviceGetUUID", lost, raising=False)
    assert nvml.list_gpus() == Inventory((), "NVML: GPU is lost")
    assert fake.open == 0


def test_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.list_gpus().problem.startswith("nvidia-ml-py is not installed")


def test_the_address_is_written_as_the_kernel_writes_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([{"uuid": "GPU-1", "bus": b"00000000:DC:00.0"}]))
    assert nvml.list_gpus() == Inventory((Gpu("GPU-1", pci="0000:dc:00.0"),))
