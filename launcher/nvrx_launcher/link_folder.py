"""The folder of this agent's socket: private, gone with the agent, or with the next one after a crash.

Blocking calls; the agent makes them in a thread.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
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


def living_folders() -> list[Path]:
    """Folders of this user's living agents, as far as this pid namespace tells."""
    found = []
    for parent in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))):  # noqa: S108 - see above
        with suppress(OSError), os.scandir(parent) as entries:
            found += [Path(entry.path) for entry in entries if _is_mine(entry) and _lives(entry.name)]
    return found


def remove_link_folder(folder: Path) -> None:
    """Remove it with the socket."""
    shutil.rmtree(folder, ignore_errors=True)


def _clear(parent: Path) -> None:
    """Remove folders of dead agents. Only those of this pid namespace can be told dead."""
    for entry in os.scandir(parent):
        if _is_mine(entry) and not _lives(entry.name):
            shutil.rmtree(entry.path, ignore_errors=True)


def _is_mine(entry: os.DirEntry[str]) -> bool:
    """A folder of an agent of this user, in this pid namespace."""
    found = _NAME.fullmatch(entry.name)
    if found is None or int(found["uid"]) != os.getuid() or int(found["namespace"]) != _namespace():
        return False
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat().st_uid == os.getuid()
    except OSError:
        return False  # gone meanwhile


def _lives(name: str) -> bool:
    found = _NAME.fullmatch(name)
    stat = processes.read_stat(int(found["pid"])) if found else None
    return found is not None and stat is not None and stat.alive and stat.start_ticks == int(found["start"])


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - beside the other calls of os
