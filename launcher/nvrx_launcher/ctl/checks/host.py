"""Limits of this machine and of the container around it. Blocking calls."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvrx_async.etcd.leftovers import DataFolder, Fate, survey
from nvrx_launcher.ctl.checks.finding import Finding, Grade

ENOUGH_FILES = 1024
SHARED_BYTES = 1 << 30
LITTLE_BYTES = 64 << 20
FEW_PROCESSES = 1024
_GIB = 1 << 30


def host_findings(shared_memory: Path) -> list[Finding]:
    """Open files, shared memory, what etcd has left in it, tracing, cgroup."""
    return [_open_files(), _shared(shared_memory), _etcd_data(survey()), _ptrace(), *_cgroup()]


def _open_files(limits: tuple[int, int] | None = None) -> Finding:
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_limit(soft)} (up to {_limit(hard)})"
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        hint = f"gloo and NCCL need one for each connection: ulimit -n {ENOUGH_FILES} or more"
        return Finding("open files", Grade.WARN, text, hint)
    return Finding("open files", Grade.OK, text)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _shared(path: Path) -> Finding:
    what = str(path)
    try:
        room = os.statvfs(path)
    except OSError as error:
        return Finding(
            what,
            Grade.BAD,
            error.strerror or str(error),
            "mount a tmpfs there: data loaders and NCCL need it",
        )
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    text = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    if free < LITTLE_BYTES:
        return Finding(
            what,
            Grade.BAD,
            text,
            "ranks die of SIGBUS: docker run --shm-size 8g, or make room there",
        )
    if total < SHARED_BYTES:
        hint = (
            "data loaders with several workers need more: docker run --shm-size 8g, or an emptyDir of memory"
        )
        return Finding(what, Grade.WARN, text, hint)
    return Finding(what, Grade.OK, text)


def _etcd_data(found: Sequence[DataFolder]) -> Finding:
    """Data of servers on this host, those that nobody will want again above all."""
    what = "etcd data"
    left = [one for one in found if one.fate is Fate.LEFT]
    others = [one for one in found if one.fate is not Fate.LEFT]
    kept = f"{_count(others)} of jobs that run, or may go on" if others else ""
    if not left:
        return Finding(what, Grade.OK, kept or "none here")
    text = f"{_count(left)} of agents that were killed" + (f"; {kept}" if kept else "")
    return Finding(what, Grade.WARN, text, "the next nvrx-launch here removes them, as does nvrx gc --yes")


def _count(found: Sequence[DataFolder]) -> str:
    size = sum(one.size_bytes for one in found) / 1e6
    return f"{size:.0f} MB in {len(found)} folder{'s' if len(found) > 1 else ''}"


def _ptrace(path: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> Finding:
    try:
        scope = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return Finding("ptrace", Grade.OK, "not restricted by Yama")
    if scope <= 1:
        return Finding("ptrace", Grade.OK, "ranks let their agent in (Yama scope " + f"{scope})")
    hint = "stacks of a hung rank come from itself only, not from py-spy: sysctl kernel.yama.ptrace_scope=1"
    return Finding("ptrace", Grade.WARN, f"Yama scope {scope} forbids it", hint)


def _cgroup(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> Iterator[Finding]:
    folder = _cgroup_folder(root, membership)
    if folder is None:
        yield Finding(
            "cgroup", Grade.NOTE, "version 1, or none", "kills for lack of memory cannot be told from others"
        )
        return
    memory, pids, cpu = (_tightest(folder, root, name) for name in ("memory.max", "pids.max", "cpu.max"))
    parts = [f"memory {int(memory) / _GIB:.1f} GiB" if memory else "memory unlimited"]
    parts.append(f"{pids} processes" if pids else "processes unlimited")
    if cpu and " " in cpu:
        quota, period = cpu.split()
        parts.append(f"{int(quota) / int(period):.1f} CPUs")
    text = ", ".join(parts)
    if pids and int(pids) < FEW_PROCESSES:
        hint = "every rank has dozens of threads, which count: raise pids.max (docker run --pids-limit)"
        yield Finding("cgroup", Grade.WARN, text, hint)
    else:
        yield Finding("cgroup", Grade.OK, f"version 2, {text}")


def _cgroup_folder(root: Path, membership: Path) -> Path | None:
    try:
        lines = membership.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    folder = root / path.lstrip("/") if path is not None else None
    return folder if folder is not None and (folder / "cgroup.controllers").exists() else None


def _tightest(folder: Path, root: Path, name: str) -> str:
    """The limit of this cgroup or of the nearest one above that has one; "" for none."""
    for one in (folder, *folder.parents):
        try:
            text = (one / name).read_text(encoding="ascii").strip()
        except OSError:
            text = ""
        if text and not text.startswith("max"):
            return text
        if one == root:
            break
    return ""
