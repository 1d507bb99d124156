"""Counting ranks for `--nproc-per-node`, with GPUs that are not there."""

from __future__ import annotations

import os

import pytest

from nvrx_launcher.errors import UsageError
from nvrx_launcher.slots import Gpu, Inventory, count_slots, count_visible, cpu_count

FOUR = tuple(Gpu(f"GPU-{letter}000-1") for letter in "abcd")
CUT = (Gpu("GPU-a", mig=("MIG-a1", "MIG-a2")), Gpu("GPU-b"), Gpu("GPU-c", mig=()))


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("0", 1),
        ("0,1", 2),
        ("3,0,2", 3),
        (" 0 , 1 ", 2),
        ("0,1,7,2", 2),
        ("7,0", 0),
        ("0,-1,1", 1),
        ("0,x,1", 1),
        ("0,,1", 1),
        ("0,1,0", 0),
        ("1gpu2,2ampere", 2),
        ("+1", 1),
        ("GPU-a000-1", 1),
        ("GPU-a,GPU-b", 2),
        ("GPU-a,GPU-x,GPU-b", 1),
        ("GPU-a,1", 1),
        ("1,GPU-a", 1),
        ("GPU-a,GPU-a", 0),
        ("GPU-", 0),
        ("MIG-a1", 0),
    ],
)
def test_whole_gpus(visible, count):
    assert count_visible(FOUR, visible) == count


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 1),
        ("0", 1),
        ("1", 1),
        ("0,1", 1),
        ("MIG-a1", 1),
        ("MIG-a1,MIG-a2", 1),
        ("MIG-x", 0),
        ("MIG-a", 0),
        ("GPU-a", 1),
        ("GPU-b", 1),
        ("2", 0),
        ("", 0),
    ],
)
def test_a_cuda_process_sees_one_mig_device(visible, count):
    assert count_visible(CUT, visible) == count


def test_words():
    def four() -> Inventory:
        return Inventory(FOUR)

    def none() -> Inventory:
        return Inventory((), "NVML: Driver Not Loaded")

    assert count_slots("gpu", None, four) == 4
    assert count_slots("auto", "0,1", four) == 2
    assert count_slots("auto", None, none) == cpu_count()
    assert count_slots("auto", "", four) == cpu_count()
    assert cpu_count() == len(os.sched_getaffinity(0))


def test_cpus_need_no_nvml():
    def forbidden() -> Inventory:
        raise AssertionError

    assert count_slots("cpu", None, forbidden) == cpu_count()


@pytest.mark.parametrize(
    ("inventory", "visible", "why"),
    [
        (Inventory((), "NVML: Driver Not Loaded"), None, "NVML: Driver Not Loaded"),
        (Inventory(FOUR), "-1", "CUDA_VISIBLE_DEVICES='-1' leaves none of 4"),
        (Inventory(()), None, "NVML lists none"),
    ],
)
def test_gpu_without_gpus_is_an_error_with_its_reason(inventory, visible, why):
    with pytest.raises(UsageError) as raised:
        count_slots("gpu", visible, lambda: inventory)
    assert f"no GPU is visible here ({why})" in raised.value.message
    assert "--nproc-per-node cpu" in raised.value.hint
