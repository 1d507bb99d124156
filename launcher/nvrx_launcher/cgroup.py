"""The kernel's word on out-of-memory kills in this process's cgroup (version 2)."""

from __future__ import annotations

from pathlib import Path


def oom_kills(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """How many processes of this cgroup and below the kernel has killed for memory; 0 where nobody counts."""
    try:
        lines = membership.read_text(encoding="ascii").splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        events = (root / path.lstrip("/") / "memory.events").read_text(encoding="ascii")
    except (OSError, StopIteration):
        return 0
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", 0))
