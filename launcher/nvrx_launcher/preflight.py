"""Checks of files before anything is started, so that a typo costs no rendezvous. None of them needs etcd."""

from __future__ import annotations

import importlib.machinery
import os
import resource
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from nvrx_launcher.addresses import interface_address, interfaces
from nvrx_launcher.config import LaunchConfig, ProgramKind, TlsConfig, WorkersConfig
from nvrx_launcher.errors import UsageError
from nvrx_launcher.log_folder import ANSWER_LIMIT_S, unanswered

if TYPE_CHECKING:
    from collections.abc import Sequence


ENOUGH_OPEN_FILES = 1024
"""What Linux allows unless somebody lowered it."""


def check(config: LaunchConfig) -> None:
    """Check what the launch will need on this node.

    Raises:
        UsageError: the script, module, program, a TLS file or the log folder cannot be used.
    """
    _check_program(config.workers)
    if config.etcd.tls is not None:
        _check_tls(config.etcd.tls)
    check_log_folder(config.logs.folder)
    check_interface(config.node.interface)
    if config.requeue:
        check_executable(config.requeue[0], "--requeue-command")


def notes(open_files: int | None = None) -> tuple[str, ...]:
    """What a person should know of this host before the ranks run into it. `open_files`: the limit, for tests."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if open_files is None else open_files
    if limit == resource.RLIM_INFINITY or limit >= ENOUGH_OPEN_FILES:
        return ()
    few = (
        f"ranks may have {limit} open files each (ulimit -n); gloo and NCCL need one per connection, and report "
        f"the lack of them as a system error: ulimit -n {ENOUGH_OPEN_FILES} or more is safer"
    )
    return (few,)


def check_current_folder() -> None:
    """Check that the folder this was started in still exists: ranks start there."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder was removed", "cd to one that exists") from error


def _check_program(workers: WorkersConfig) -> None:
    if workers.kind is ProgramKind.EXECUTABLE:
        check_executable(workers.program, "--no-python")
        return
    check_executable(workers.argv[0], "PYTHON_EXEC")
    if workers.kind is ProgramKind.SCRIPT:
        check_script(workers.program)
    elif workers.argv[0] == sys.executable:  # another interpreter finds modules of its own
        check_module(workers.program, [str(Path.cwd()), *sys.path])


def check_script(script: str) -> None:
    """Check that Python can run this path: a file, or a folder or archive with a `__main__.py`."""
    path = Path(script)
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"{script} is a folder without __main__.py", "name the script in it")
        return
    if not path.exists():
        raise UsageError(f"there is no script {script} in {Path.cwd()}", _near(path))
    if not path.is_file():
        raise UsageError(f"{script} is not a file")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{script} cannot be read by this user", f"ls -l {script}")


def _near(path: Path) -> str:
    if path.parent.is_dir():
        from difflib import get_close_matches  # noqa: PLC0415 - only a typo pays for it

        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
        close = get_close_matches(path.name, names, n=1)
        if close:
            return f"did you mean {path.with_name(close[0])}?"
    return "for a module write -m NAME; for a program that is no Python script, --no-python"


def check_executable(program: str, what: str) -> None:
    """Check that the program is a path or a name on PATH that may be executed."""
    if shutil.which(program) is not None:
        return
    if Path(program).is_file():
        raise UsageError(f"{what}: {program} may not be executed", f"chmod +x {program}")
    raise UsageError(f"{what}: there is no program {program}", "give its path, or a name on PATH")


def check_module(module: str, search: Sequence[str]) -> None:
    """Check that `python -m module` finds it, importing neither it nor its parents.

    Folders without `__init__.py` inside one another are not followed: Python knows their contents only by
    importing them.
    """
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UsageError(f"-m {module}: not the name of a module", "such as -m package.train")
    try:
        path = _contents(module, parts, search)
        runs = path is None or _find(f"{module}.__main__", path) is not None
    except KeyError:  # what the import system says of such a folder
        return
    if not runs:
        raise UsageError(
            f"-m {module}: a package without __main__.py cannot be run", f"-m {module}.train, say"
        )


def _contents(module: str, parts: Sequence[str], search: Sequence[str]) -> Sequence[str] | None:
    """Where a package's modules lie; None for a module that is no package."""
    path: Sequence[str] | None = search
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        if path is None:
            parent = ".".join(parts[: depth - 1])
            raise UsageError(f"-m {module}: {parent} is a module, not a package", _module_hint(module))
        spec = _find(name, path)
        if spec is None:
            raise UsageError(f"-m {module}: there is no module {name}", _module_hint(module))
        locations = spec.submodule_search_locations
        path = None if locations is None else list(locations)
    return path


def _find(name: str, path: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
    found = importlib.machinery.PathFinder.find_spec(name, path)
    if found is not None:
        return found
    for finder in sys.meta_path:  # editable installs, frozen and built-in modules
        found = finder.find_spec(name, path if "." in name else None)
        if found is not None:
            return found
    return None


def _module_hint(module: str) -> str:
    if module.endswith(".py"):
        return f"did you mean -m {module.removesuffix('.py')}, or {module} without -m?"
    return f"it is looked for in {Path.cwd()} and in the packages of {sys.executable}"


def _check_tls(tls: TlsConfig) -> None:
    for option, path in (
        ("--etcd-cacert", tls.ca_file),
        ("--etcd-cert", tls.cert_file),
        ("--etcd-key", tls.key_file),
    ):
        if path is None:
            continue
        content = _read(option, path)
        if "-----BEGIN " not in content:
            raise UsageError(f"{option} {path}: not a PEM file", "it should hold a line -----BEGIN …-----")


def read_password(path: Path) -> str:
    """The first line of a password file.

    Raises:
        UsageError: the file cannot be read, or its first line is empty.
    """
    lines = _read("--etcd-password-file", path).splitlines()
    if not lines or not lines[0]:
        raise UsageError(f"--etcd-password-file {path}: its first line is empty", "it should be the password")
    return lines[0]


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}", f"ls -l {path}") from error


def check_log_folder(folder: Path, limit_s: float = ANSWER_LIMIT_S) -> None:
    """Check that the folder can be made; makes nothing.

    Raises:
        UsageError: it cannot.
        NotReadyError: its disk has not answered within `limit_s`.
    """
    found: list[str] = []
    looking = threading.Thread(target=lambda: found.append(_log_trouble(folder)), daemon=True)
    looking.start()
    looking.join(limit_s)
    if not found:
        raise unanswered(folder, limit_s)
    if found[0]:
        raise UsageError(f"--log-dir: {found[0]}", "give another --log-dir")


def _log_trouble(folder: Path) -> str:
    """Why the folder cannot be made; a disk that does not answer keeps its thread for ever."""
    try:
        standing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
        if not standing.is_dir():
            return f"{standing} is a file, logs need a folder"
        if not os.access(standing, os.W_OK | os.X_OK):
            return f"nothing can be written in {standing}"
    except OSError as error:  # exists() passes on what is not plain absence, such as a stale NFS handle
        return f"{folder}: {error.strerror}"
    return ""


def check_interface(name: str | None) -> None:
    """Check that the interface is there and has an address."""
    if name is None:
        return
    try:
        interface_address(name)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"--interface {name}: {reason}", f"interfaces of this host: {', '.join(interfaces())}"
        ) from error
