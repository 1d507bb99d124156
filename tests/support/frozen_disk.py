"""A disk that stops answering: a small ext4 of its own, frozen. Who writes there waits where no signal reaches."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BYTES = 64 << 20


class Disk:
    """Mounted at `folder`; it answers until it is frozen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._frozen = False

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", self.folder], check=True, timeout=20)
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            subprocess.run(["fsfreeze", "--unfreeze", self.folder], check=True, timeout=20)
        self._frozen = False


@contextmanager
def mounted_disk(at: Path) -> Iterator[Disk]:
    """Skips the test where none can be had."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("fsfreeze", "mkfs.ext4", "mount"))):
        pytest.skip("needs root, fsfreeze and mkfs.ext4")
    image, folder = at / "image", at / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(_BYTES)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=30)
    mount = ["mount", "-o", "loop", image, folder]
    done = subprocess.run(mount, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        pytest.skip(f"no loop device: {done.stderr}")
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.thaw()
        subprocess.run(["umount", folder], check=True, timeout=30)


def waits_for_it(pid: int) -> bool:
    """Whether a process sleeps where no signal reaches it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"
    except FileNotFoundError:
        return False
