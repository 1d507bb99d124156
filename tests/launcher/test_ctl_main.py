"""The command line of `nvrx`: what it loads, what it refuses, with which exit code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.nvrx_cli import environment, nvrx

from nvrx_async.job.codec import encode
from nvrx_async.job.records import Node, Process

NOWHERE = "127.0.0.1:1"
HEAVY = ("grpc", "aetcd", "asyncio", "anyio", "torch", "rich")
VERBS = (
    "ps",
    "status",
    "top",
    "nodes",
    "ranks",
    "rounds",
    "describe",
    "events",
    "why",
    "wait",
    "logs",
    "stop",
    "restart",
    "grow",
    "drain",
    "undrain",
    "exclude",
    "doctor",
    "gc",
    "dump",
    "completion",
)


@pytest.mark.parametrize("arguments", [["--help"], ["why", "--help"], ["completion", "bash"]])
def test_help_loads_nothing_heavy(arguments):
    program = (
        "import sys\nfrom nvrx_launcher.ctl.main import main\n"
        f"main({arguments!r})\nsys.exit(', '.join(sys.modules.keys() & set({HEAVY!r})) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment(None)
    )
    assert done.returncode == 0, done.stderr


def test_help_names_every_verb_and_the_exit_codes():
    answer = nvrx("--help", etcd=None)
    assert answer.code == 0
    assert all(f"\n  {verb} " in answer.out for verb in VERBS)
    assert "etcd or the agents cannot be reached" in answer.out
    assert nvrx(etcd=None).out == answer.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["staus", "llama"], "did you mean nvrx status?"),
        (["frobnicate"], "nvrx --help lists all verbs"),
        (["status"], "Missing argument 'JOB'"),
        (["wait", "llama", "--for", "running", "--timeout", "soon"], "no length of time"),
        (["events", "llama", "--since", "soon"], "no moment"),
        (["events", "llama", "--since", "99999999999d"], "longer than 100 years"),
        (["gc", "--older-than", "99999999999d"], "longer than 100 years"),
        (["exclude", "llama", "n0", "--for", "99999999999d"], "longer than 100 years"),
        (["describe", "llama", "round", "²"], "needs the number"),
        (["status", ""], "not empty"),
        (["why", os.fsdecode(b"llama\xff")], "'llama\\udcff' is not the name of a job"),
        (["why", "\x1b[31mllama"], "'\\x1b[31mllama' is not the name of a job"),
        (["describe", "llama", "rank"], "needs the number"),
        (["describe", "llama", "rank", "x"], "needs the number"),
        (["why", "llama", "-o", "xml"], "'xml' is not one of"),
        (["wait", "llama", "--for", "finished"], "running, ended, round=N or step=N"),
        (["ps", "--etcd", "host"], "has no port"),
        (["--etcd", "host:1", "ps"], "behind the verb: nvrx ps --etcd"),
    ],
)
def test_wrong_use_is_told_and_ends_with_2(arguments, says):
    answer = nvrx(*arguments, etcd=NOWHERE)
    assert (answer.code, says in answer.err) == (2, True), answer
    assert "Traceback" not in answer.err


def test_an_etcd_that_is_not_there_is_named():
    answer = nvrx("ps", etcd=NOWHERE)
    assert (answer.code, NOWHERE in answer.err) == (3, True), answer
    assert "hint: " in answer.err


def test_what_a_terminal_cannot_show_costs_a_sign_and_not_the_answer(tmp_path):
    job = tmp_path / "llama"
    job.mkdir()
    process = Process("boot", "pid:[1]", 1, 1)
    node = encode(Node("n0", "1", "grün", "127.0.0.1", 2, process, "2026-01-01T00:00:00.000Z"))
    (job / "history.jsonl").write_bytes(b'{"record":"registered","attempt":0,' + node[1:] + b"\n")
    answer = nvrx("status", "llama", "--log-dir", str(tmp_path), etcd=NOWHERE, PYTHONIOENCODING="ascii")
    assert (answer.code, "gr?n" in answer.out, "Traceback" in answer.err) == (3, True, False), answer


def test_a_reader_that_leaves_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m nvrx_launcher.ctl --help | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env=environment(None),
    )
    assert (done.returncode, done.stderr) == (0, "")
