"""When ranks get a terminal of their own."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from nvrx_launcher.terminal import USUAL_SIZE, terminal_size


@pytest.fixture
def screen() -> Iterator[TextIO]:
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
    with os.fdopen(writer, "w") as file:
        yield file
    os.close(reader)


def test_on_a_terminal(screen: TextIO) -> None:
    assert terminal_size(screen, pty=None) == (50, 132)
    assert terminal_size(screen, pty=True) == (50, 132)
    assert terminal_size(screen, pty=False) is None


def test_elsewhere(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        assert terminal_size(file, pty=None) is None
        assert terminal_size(file, pty=True) == USUAL_SIZE
