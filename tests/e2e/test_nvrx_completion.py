"""Completion in the shells that people use: words of jobs, nodes, ranks and verbs, typed on a terminal."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from support.etcd_server import EtcdProcess
from support.nvrx_cli import COMMAND, ESCAPES, OWN_TERMINAL, environment, nvrx
from support.recorded_world import write_world

from nvrx_async.etcd import EtcdClient, EtcdConfig

BOUND_S = 40.0
INSTALL = "apt-get install {shell}, as .ci/install does"
SETUP = {
    "bash": 'eval "$(nvrx completion bash)"',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(nvrx completion zsh)"',
}
PLAIN = {"bash": ("--norc", "--noprofile", "-i"), "zsh": ("-f", "-i")}
ASKED = [
    ("nvrx why whole-wo", "nvrx why whole-world"),
    ("nvrx drain whole-world gpu", "nvrx drain whole-world gpu-node-000"),
    ("nvrx und", "nvrx undrain"),
    ("nvrx wait whole-world --for run", "--for running"),
]
"""What is typed, and what stands there after a tab."""


@pytest.fixture(scope="module")
def world(etcd: EtcdProcess) -> EtcdProcess:
    """A job of two nodes, gpu-node-0000 and gpu-node-0001, with ranks 0 to 15."""

    async def write() -> None:
        async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client:
            await write_world(client, "whole-world", 2)

    anyio.run(write)
    return etcd


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with `nvrx` in it, as an installed package has."""
    program = tmp_path / "nvrx"
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    return tmp_path


def shell_or_skip(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine ({INSTALL.format(shell=name)})")
    return found


class Typist:
    """A shell on a terminal, and somebody who types."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self._leader, follower = os.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        self.popen = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *command],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
        os.close(follower)

    def types(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def sees(self, text: str) -> str:
        """Wait until the text stands on the terminal; all that came until then."""
        seen, end_s = "", time.monotonic() + BOUND_S
        while text not in _plain(seen):
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"not seen: {text!r} in {_plain(seen)!r}"
            assert select.select([self._leader], [], [], left_s)[0], f"not seen: {text!r} in {_plain(seen)!r}"
            seen += os.read(self._leader, 1 << 16).decode("utf-8", "replace")
        return _plain(seen)

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        os.close(self._leader)


def _plain(text: str) -> str:
    """Without escapes, and without what a line editor writes to move its cursor."""
    return re.sub(r"\x1b[=>]|[\r\x07\x00]|.\x08", "", ESCAPES.sub("", text))


@pytest.fixture(params=["bash", "zsh"])
def typist(request: pytest.FixtureRequest, world: EtcdProcess, programs: Path) -> Iterator[Typist]:
    name = request.param
    command = [shell_or_skip(name), *PLAIN[name]]
    env = environment(
        world.endpoint, PATH=f"{programs}:{os.environ['PATH']}", TERM="xterm", HOME=str(programs)
    )
    typing = Typist(command, {**env, "PS1": "$ ", "PROMPT_COMMAND": ""}, programs)
    try:
        typing.types(f"{SETUP[name]}; echo re''ady\n")
        typing.sees("ready\n")
        yield typing
    finally:
        typing.close()


def test_a_tab_completes_verbs_jobs_nodes_and_conditions(typist: Typist) -> None:
    for typed, stands in ASKED:
        typist.types(typed + "\t")
        typist.sees(stands)
        typist.types("\x15")  # what stands there is thrown away


def test_tabs_list_ranks(typist: Typist) -> None:
    typist.types("nvrx describe whole-world rank 1\t\t")
    listed = typist.sees("15")
    assert "12" in listed


def test_fish_completes_the_same(world: EtcdProcess, programs: Path) -> None:
    fish = shell_or_skip("fish")
    path = f"{programs}:{os.environ['PATH']}"
    lines = [*(typed for typed, _ in ASKED), "nvrx describe whole-world rank 1"]
    asks = "; ".join(f'echo ">"; complete -C "{line}"' for line in lines)
    done = subprocess.run(
        [fish, "--no-config", "-c", f"nvrx completion fish | source; {asks}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S * 2,
        env=environment(world.endpoint, PATH=path, HOME=str(programs), TERM="xterm"),
        cwd=programs,
    )
    answers = [
        [line.split("\t")[0] for line in part.split("\n") if line] for part in done.stdout.split(">\n")[1:]
    ]
    assert "whole-world" in answers[0], done
    assert {"gpu-node-0000", "gpu-node-0001"} <= set(answers[1])
    assert "undrain" in answers[2]
    assert "running" in answers[3]
    assert {"1", "10", "15"} <= set(answers[4])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_the_shell_is_told_asks_nvrx(shell: str) -> None:
    assert "_NVRX_COMPLETE" in nvrx("completion", shell, etcd=None).out


def test_an_etcd_that_is_away_completes_nothing_and_says_nothing(programs: Path) -> None:
    asked = nvrx(etcd="127.0.0.1:1", _NVRX_COMPLETE="bash_complete", COMP_WORDS="nvrx why x", COMP_CWORD="2")
    assert (asked.out.strip(), asked.err) == ("", "")
