"""The folder of this agent's socket: private, gone with the agent, or with the next one after a crash.

Blocking calls; the agent makes them in a thread.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from nvrx_launcher.keeper import processes

LONGEST_PARENT = 40
"""Signs; with the names below it a socket's path must stay within 107 (unix(7))."""

_NAME = re.compile(r"nvrx-(?P<uid>\d+)-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<start>\d+)")


def make_link_folder() -> Path:
    """Make the folder (0700) and remove those that dead agents of this user left.

    Raises:
        OSError: it cannot be made.
    """
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > LONGEST_PARENT:
        parent = Path("/tmp")  # noqa: S108 - the folder in it is private, and the one place with a short name
    _clear(parent)
    mine = processes.read_stat(os.getpid())
    start = mine.start_ticks if mine else 0
    folder = parent / f"nvrx-{os.getuid()}-{_namespace()}-{os.getpid()}-{start}"
    folder.mkdir(mode=0o700)
    return folder


def remove_link_folder(folder: Path) -> None:
    """Remove it with the socket."""
    shutil.rmtree(folder, ignore_errors=True)


def _clear(parent: Path) -> None:
    """Remove folders of dead agents. Only those of this pid namespace can be told dead."""
    for entry in os.scandir(parent):
        found = _NAME.fullmatch(entry.name)
        if found is None or int(found["uid"]) != os.getuid() or int(found["namespace"]) != _namespace():
            continue
        stat = processes.read_stat(int(found["pid"]))
        dead = stat is None or not stat.alive or stat.start_ticks != int(found["start"])
        if dead and entry.is_dir(follow_symlinks=False) and entry.stat().st_uid == os.getuid():
            shutil.rmtree(entry.path, ignore_errors=True)


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - beside the other calls of os
