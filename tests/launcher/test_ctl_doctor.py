"""What the doctor finds, and what it says to do."""

from __future__ import annotations

from importlib import metadata

import pytest

from nvrx_async.etcd.leftovers import DataFolder, Fate
from nvrx_launcher.ctl.checks import etcd, host, network, packages
from nvrx_launcher.ctl.checks.finding import Grade, numbers
from nvrx_launcher.slots import Gpu, Inventory


def versions(**known: str):
    def version(name: str) -> str:
        found = known.get(name.replace("-", "_"))
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    return version


@pytest.mark.parametrize(
    ("version", "grade"),
    [
        ("2.27.7", Grade.OK),
        ("2.28.3", Grade.WARN),
        ("2.28.8", Grade.WARN),
        ("2.28.9", Grade.OK),
        ("2.20.5", Grade.NOTE),
    ],
)
def test_nccl_that_crashes_when_a_communicator_is_aborted(version, grade):
    found = packages.package_findings(
        versions(torch="2.9.0", nvidia_nccl_cu12=version), lambda: Inventory(())
    )
    (nccl,) = [one for one in found if one.what == "NCCL"]
    assert nccl.grade is grade
    assert bool(nccl.hint) == (grade is not Grade.OK)


def test_an_old_torch_and_none():
    (old, *_) = packages.package_findings(versions(torch="2.3.1+cu121"), lambda: Inventory(()))
    assert old.grade is Grade.WARN
    (none, *_) = packages.package_findings(versions(), lambda: Inventory(()))
    assert none.grade is Grade.NOTE


def test_gpus_are_counted():
    gpus = Inventory((Gpu("GPU-1", None, ""), Gpu("GPU-2", ("MIG-1",), "")))
    assert packages.package_findings(versions(), lambda: gpus)[-1].text == "2, 1 of them sliced (MIG)"


@pytest.mark.parametrize(
    ("version", "grade"),
    [
        ("3.4.23", Grade.NOTE),
        ("3.4.31", Grade.OK),
        ("3.5.1", Grade.WARN),
        ("3.5.9", Grade.NOTE),
        ("3.5.13", Grade.OK),
        ("3.6.2", Grade.OK),
    ],
)
def test_etcds_that_are_good_for_a_cluster(version, grade):
    assert etcd._of_version("etcd", version, version).grade is grade


def test_a_clock_that_is_off():
    assert etcd._clock(-7.0).text == "7 s behind etcd's"
    assert etcd._clock(-7.0).grade is Grade.WARN
    assert etcd._clock(0.9).grade is Grade.OK


def test_what_etcd_left_is_told_apart_from_what_lives(tmp_path):
    def data(fate: Fate) -> DataFolder:
        return DataFolder(tmp_path, 128_000_000, "job", fate, "")

    assert host._etcd_data([]).text == "none here"
    living = host._etcd_data([data(Fate.HELD), data(Fate.AWAITED)])
    assert (living.grade, living.text) == (Grade.OK, "256 MB in 2 folders of jobs that run, or may go on")
    left = host._etcd_data([data(Fate.LEFT), data(Fate.HELD)])
    assert left.grade is Grade.WARN
    assert left.text.startswith("128 MB in 1 folder of agents that were killed; 128 MB in 1 folder of jobs")


def test_few_open_files_and_no_shared_memory(tmp_path):
    assert host._open_files((256, 4096)).grade is Grade.WARN
    assert host._open_files((4096, 4096)).grade is Grade.OK
    assert host._shared(tmp_path / "none").grade is Grade.BAD


@pytest.mark.parametrize(("scope", "grade"), [("0", Grade.OK), ("1", Grade.OK), ("2", Grade.WARN)])
def test_ptrace(tmp_path, scope, grade):
    path = tmp_path / "ptrace_scope"
    path.write_text(scope)
    assert host._ptrace(path).grade is grade


def test_limits_of_the_cgroup_are_those_of_the_nearest_that_has_one(tmp_path):
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    (inner / "cgroup.controllers").write_text("memory pids")
    (inner / "memory.max").write_text("max\n")
    (tmp_path / "job" / "memory.max").write_text(f"{8 << 30}\n")
    (inner / "pids.max").write_text("100\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/job/step\n")
    (found,) = host._cgroup(tmp_path, membership)
    assert (found.grade, "memory 8.0 GiB" in found.text) == (Grade.WARN, True)


def test_every_machine_gets_findings_about_its_network():
    found = network.network_findings()
    assert {"ports", "IPv6"} <= {one.what for one in found}
    assert all(one.hint for one in found if one.grade in (Grade.WARN, Grade.BAD))


def test_numbers_of_a_version():
    assert numbers("2.28.9+cu12") == (2, 28, 9)
    assert numbers("unknown") == ()
