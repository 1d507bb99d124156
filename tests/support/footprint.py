"""What a process takes of memory and of the processors, read from /proc."""

from __future__ import annotations

import os
import re
from pathlib import Path


def pss_bytes(pid: int) -> int:
    """Its memory, pages shared with others in shares (proportional set size)."""
    return _rollup(pid, "Pss")


def rss_bytes(pid: int) -> int:
    """Its memory, pages shared with others in full."""
    return _rollup(pid, "Rss")


def cpu_s(pid: int) -> float:
    """Time on a processor so far: fields 14 and 15 of proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def libraries(pid: int) -> set[str]:
    """Names of the files it has mapped."""
    return {Path(line.split(maxsplit=5)[5]).name for line in _maps(pid) if line.count("/")}


def _maps(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/maps").read_text().splitlines()


def _rollup(pid: int, name: str) -> int:
    found = re.search(rf"^{name}: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found, f"no {name} in /proc/{pid}/smaps_rollup"
    return int(found[1]) * 1024
