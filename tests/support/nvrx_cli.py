"""Runs `nvrx` as a person does: in a pipe, or on a terminal of a given size."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

COMMAND = (sys.executable, "-m", "nvrx_launcher.ctl")
BOUND_S = 30.0
_OURS = ("NVRX_", "PET_", "COLUMNS", "LINES", "NO_COLOR", "TERM")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Answer:
    """What `nvrx` answered. On a terminal `out` holds stdout and stderr together."""

    code: int
    out: str
    err: str = ""

    @property
    def plain(self) -> str:
        """Without colours."""
        return ESCAPES.sub("", self.out)

    @property
    def lines(self) -> list[str]:
        return self.plain.replace("\r\n", "\n").splitlines()


def environment(etcd: str | None, **more: str) -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith(_OURS) or "TEST" in name}
    if etcd is not None:
        base["NVRX_ETCD_ENDPOINTS"] = etcd
    return {**base, **more}


def nvrx(*arguments: str, etcd: str | None, cwd: str | None = None, **more: str) -> Answer:
    """In a pipe."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
        env=environment(etcd, **more),
        cwd=cwd,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


class Beside:
    """An `nvrx` that goes on while the test does something."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen
        self._out = ""

    def says(self, text: str) -> None:
        """Wait for a line that holds the text."""
        stdout = self._popen.stdout
        assert stdout is not None
        while text not in self._out:
            assert select.select([stdout], [], [], BOUND_S)[0], f"not said: {text}\n{self._out}"
            line = os.read(stdout.fileno(), 1 << 16).decode()
            assert line, f"ended before it said {text!r}: {self.ends()}"
            self._out += line

    def ends(self) -> Answer:
        out, err = self._popen.communicate(timeout=BOUND_S)
        return Answer(self._popen.returncode, self._out + out, err)


@contextmanager
def nvrx_beside(*arguments: str, etcd: str | None, **more: str) -> Iterator[Beside]:
    """In pipes, beside the test."""
    popen = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(etcd, **more),
    )
    try:
        yield Beside(popen)
    finally:
        popen.kill()
        popen.communicate()


def on_terminal(
    *arguments: str,
    etcd: str | None,
    columns: int = 80,
    rows: int = 40,
    term: str = "xterm-256color",
    until: str | None = None,
    keys: bytes = b"\x03",
    **more: str,
) -> Answer:
    """On a terminal of this size. With `until`, `keys` are typed when the text has come (Ctrl-C)."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    # Its own session with this terminal, so that Ctrl-C reaches it.
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, *COMMAND, *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment(etcd, **{"TERM": term, **more}),
        start_new_session=True,
    )
    os.close(follower)
    out, typed = "", until is None
    end_s = time.monotonic() + BOUND_S
    try:
        while (left_s := end_s - time.monotonic()) > 0:
            if not select.select([leader], [], [], left_s)[0]:
                break
            data = _read(leader)
            if not data:
                break
            out += data
            if not typed and until is not None and until in ESCAPES.sub("", out):
                os.write(leader, keys)
                typed = True
        return Answer(process.wait(timeout=BOUND_S), out)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(leader)


OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def _read(leader: int) -> str:
    try:
        return os.read(leader, 1 << 16).decode("utf-8", "replace")
    except OSError:  # EIO: the other side is closed
        return ""
