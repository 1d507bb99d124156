"""Checks of files before anything starts."""

from __future__ import annotations

import os
import sys

import pytest

from nvrx_launcher import preflight
from nvrx_launcher.command_line import parse
from nvrx_launcher.configure import configure
from nvrx_launcher.errors import UsageError
from nvrx_launcher.preflight import check_interface


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('must not be imported')")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('must not be imported')")
    (tmp_path / "package" / "job.py").write_text("")
    (tmp_path / "spaced" / "inner").mkdir(parents=True)
    (tmp_path / "spaced" / "inner" / "job.py").write_text("")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("")
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o755)
    (tmp_path / "pem").write_text("-----BEGIN CERTIFICATE-----\n")
    return tmp_path


def check(arguments: str, **environment: str):
    line = parse(arguments.split(), environment)
    preflight.check(configure(line, environment, lambda _: 1, preflight.read_password))


@pytest.mark.parametrize(
    "arguments",
    [
        "train.py",
        "./train.py",
        "app",
        "-m train",
        "-m package.job",
        "-m app",
        "-m spaced.inner.job",
        "-m http.server",
        "-m json.tool",
        "-m this",
        "--no-python ./program",
        "--no-python sh -c true",
        "--rdzv-endpoint a:1 --etcd-cacert pem --etcd-cert pem --etcd-key pem train.py",
        "--log-dir new/logs train.py",
    ],
)
def test_what_is_fine(folder, arguments):
    before = sorted(folder.rglob("*"))
    check(arguments)
    assert sorted(folder.rglob("*")) == before
    assert "package" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("trian.py", "there is no script trian.py in ", "did you mean train.py?"),
        ("zzz", "there is no script zzz", "-m NAME"),
        ("nowhere/x.py", "there is no script nowhere/x.py", ""),
        ("package", "package is a folder without __main__.py", ""),
        ("/dev/null", "/dev/null is not a file", ""),
        ("-m missing", "-m missing: there is no module missing", "packages of"),
        ("-m package.missing", "-m package.missing: there is no module package.missing", ""),
        ("-m train.py", "-m train.py: train is a module, not a package", "-m train,"),
        ("-m package", "a package without __main__.py cannot be run", "-m package."),
        ("-m ./train.py", "not the name of a module", "package.train"),
        ("--no-python ./not-executable", "may not be executed", "chmod +x"),
        ("--no-python no-such-program", "there is no program no-such-program", "PATH"),
        ("--rdzv-endpoint a:1 --etcd-cacert gone train.py", "--etcd-cacert gone: No such file", "ls -l"),
        (
            "--rdzv-endpoint a:1 --etcd-cacert train.py train.py",
            "--etcd-cacert train.py: not a PEM file",
            "BEGIN",
        ),
        ("--rdzv-endpoint a:1 --etcd-cacert app train.py", "--etcd-cacert app: Is a directory", ""),
        ("--log-dir train.py train.py", "train.py is a file, logs need a folder", "--log-dir"),
        ("--log-dir train.py/sub train.py", "is a file, logs need a folder", "--log-dir"),
    ],
)
def test_what_is_not(folder, arguments, message, hint):
    with pytest.raises(UsageError) as raised:
        check(arguments)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_folder_that_may_not_be_written(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _mode: path != folder)  # root may write anywhere
    with pytest.raises(UsageError, match=f"nothing can be written in {folder}"):
        preflight.check_log_folder(folder / "nvrx-logs" / "run")


def test_another_interpreter_must_exist_and_finds_its_own_modules(folder):
    with pytest.raises(UsageError, match="PYTHON_EXEC: there is no program /no/python"):
        check("train.py", PYTHON_EXEC="/no/python")
    check("-m only_there", PYTHON_EXEC=str(folder / "program"))


def test_the_password_is_the_first_line_of_its_file(folder):
    (folder / "password").write_text("secret \nsecond line\n")
    assert preflight.read_password(folder / "password") == "secret "
    (folder / "empty").write_text("\n")
    with pytest.raises(UsageError, match="its first line is empty"):
        preflight.read_password(folder / "empty")
    with pytest.raises(UsageError, match="No such file"):
        preflight.read_password(folder / "gone")


def test_an_interface_that_is_not_there():
    check_interface("lo")
    check_interface(None)
    with pytest.raises(UsageError, match="--interface none0: ") as raised:
        check_interface("none0")
    assert "lo" in raised.value.hint


def test_few_open_files_are_told_of_before_nccl_runs_out_of_them():
    (note,) = preflight.notes(128)
    assert "128 open files" in note
    assert "ulimit -n" in note
    assert preflight.notes(1024) == preflight.notes(-1) == ()
