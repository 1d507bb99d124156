"""`nvrx doctor`: what keeps jobs from running on this machine, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from nvrx_launcher.ctl.checks.etcd import etcd_findings
from nvrx_launcher.ctl.checks.finding import Finding, Grade
from nvrx_launcher.ctl.checks.host import host_findings
from nvrx_launcher.ctl.checks.network import network_findings
from nvrx_launcher.ctl.checks.packages import package_findings
from nvrx_launcher.ctl.lines import hanging
from nvrx_launcher.ctl.place import EtcdOptions
from nvrx_launcher.ctl.screen import Screen
from nvrx_launcher.ctl.table import signs

BAD = 1
_READABLE = 25


async def doctor(options: EtcdOptions, screen: Screen, *, shared_memory: str) -> int:
    """Look everywhere; 1 where something will keep a job from running."""
    found = [
        *await etcd_findings(options),
        *await anyio.to_thread.run_sync(network_findings),
        *await anyio.to_thread.run_sync(host_findings, Path(shared_memory)),
        *await anyio.to_thread.run_sync(package_findings),
    ]
    screen.emit_all("DoctorReport", found, lambda: report(found, screen))
    return BAD if any(finding.grade is Grade.BAD for finding in found) else 0


def report(found: Sequence[Finding], screen: Screen) -> list[str]:
    """A line for each finding, and below it what to do."""
    palette = screen.palette
    paints = {
        Grade.OK: palette.success,
        Grade.NOTE: palette.quiet,
        Grade.WARN: palette.warning,
        Grade.BAD: palette.error,
    }
    width = max(signs(finding.what) for finding in found)
    lines = []
    for finding in found:
        mark = paints[finding.grade](f"{finding.grade.value:<4}")
        plain, painted = (
            f"{word}  {finding.what:<{width}}  " for word in (f"{finding.grade.value:<4}", mark)
        )
        lines += hanging(plain, finding.text, screen.width, least=_READABLE, paint_head=painted)
        if finding.hint:
            blank = " " * (width + 8 if screen.width is None or screen.width - width > _READABLE else 2)
            shown = f"{blank}{palette.path('->')} "
            lines += hanging(f"{blank}-> ", finding.hint, screen.width, least=_READABLE, paint_head=shown)
    bad = sum(finding.grade is Grade.BAD for finding in found)
    warned = sum(finding.grade is Grade.WARN for finding in found)
    lines += ["", f"{len(found)} looked at: {bad} bad, {warned} to think about"]
    return lines
