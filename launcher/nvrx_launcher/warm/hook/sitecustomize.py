"""What a hooked rank runs at the end of Python's start-up, before its program. See `docs/restart.md`.

Python imports the first `sitecustomize` on its path. The keeper puts this folder there, and a socket into
`NVRX_HOOK`. Two modes:

- `watch` (a cold rank): tell, when the program imports one of the named modules, what it changed before.
- `warm` (an idle process): import the named modules, wait for the rest of the environment, go on.

Either way the hook first takes itself out of path, environment and modules, and lets a `sitecustomize` of the
user run, as if it had never been there. It imports nothing that Python itself has not loaded by now.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # would leave `typing` behind in the user's program
    from collections.abc import Callable, Collection
    from typing import Any

_HOOK = "NVRX_HOOK"
_NAME = "sitecustomize"
_UNFIT_EXIT = 0
_NUMBER_BYTES = 4


class _Line:
    """The socket to the keeper: sentences that end in a line feed go out, one frame comes in."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_inheritable(fd, False)  # noqa: FBT003 - takes no keywords

    def tell(self, *words: str) -> None:
        text = "\t".join(word.replace("\n", " ").replace("\t", " ") for word in words)
        os.write(self._fd, text.encode("utf-8", "surrogateescape") + b"\n")

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes; the process ends where the keeper did."""
        data = b""
        while len(data) < size:
            more = os.read(self._fd, size - len(data))
            if not more:
                os._exit(_UNFIT_EXIT)
            data += more
        return data

    def read_number(self) -> int:
        return int.from_bytes(self.read(_NUMBER_BYTES), "big")

    def close(self) -> None:
        os.close(self._fd)


class _Watch:
    """A finder that finds nothing: it sees the program's first import of each named module."""

    def __init__(self, line: _Line, names: Collection[str]) -> None:
        self._line = line
        self._pid = os.getpid()
        self._before = _surroundings()
        self._names = set(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Import's question to every finder."""
        if name not in self._names:
            return
        self._names.discard(name)
        if os.getpid() == self._pid:  # not a child that was forked before the import
            origin = _origin(name, (finder for finder in sys.meta_path if finder is not self), path, target)
            self._line.tell("imports", name, origin, ",".join(self._changes()))
        if not self._names or os.getpid() != self._pid:
            sys.meta_path.remove(self)
            self._line.close()

    def _changes(self) -> list[str]:
        """What the program changed that an import could depend on."""
        now = _surroundings()
        names = {*self._before, *now}
        return sorted(name for name in names if self._before.get(name) != now.get(name))


class _Reads:
    """Notes which of the names that are not known yet are asked of the environment during imports."""

    def __init__(self, names: Collection[str]) -> None:
        self.seen: set[str] = set()
        self._names = names
        self._plain: Callable[[Any], Any] = os.environ.encodekey

    def __enter__(self) -> None:
        def encode(name: Any) -> Any:
            if name in self._names:
                self.seen.add(name)
            return self._plain(name)

        os.environ.encodekey = encode

    def __exit__(self, *error: object) -> None:
        os.environ.encodekey = self._plain


def _hook() -> None:
    mode, fd, names, later, path = os.environ.pop(_HOOK).split(" ")
    _take_out(has_path=path == "path")
    line = _Line(int(fd))
    if mode == "watch":
        sys.meta_path.insert(0, _Watch(line, names.split(",")))
        _users_own()
        return
    missing = _prepare(line, names.split(","), frozenset(later.split(",")))
    _become_a_rank(line)
    if missing is not None:
        raise missing


def _take_out(*, has_path: bool) -> None:
    """Leave no trace in path, environment and modules."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would stay loaded
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    path = os.environ.pop("PYTHONPATH", "").partition(os.pathsep)[2]
    if has_path:
        os.environ["PYTHONPATH"] = path
    sys.modules.pop(_NAME, None)


def _users_own() -> None:
    """Import the next `sitecustomize`; the ImportError that there is none is what Python expects then."""
    __import__(_NAME)


def _prepare(line: _Line, names: Collection[str], later: Collection[str]) -> ImportError | None:
    """Everything that can be done before the rank's place is known; the process ends where that fails.

    Returns the error that says that the user has no `sitecustomize`.
    """
    missing, reads, ready, why = None, _Reads(later), False, ""
    try:
        with reads:
            try:
                _users_own()
            except ImportError as error:
                if error.name != _NAME:
                    raise
                missing = error
            _import_all(names)
        why = _unfit(reads.seen)
        ready = not why
    finally:
        if not ready:
            raised = sys.exc_info()[1]
            line.tell("unfit", why if raised is None else f"{type(raised).__name__}: {raised}")
            os._exit(_UNFIT_EXIT)
    line.tell("ready", ",".join(f"{name}={getattr(sys.modules[name], '__file__', None)}" for name in names))
    return missing


def _import_all(names: Collection[str]) -> None:
    """With the folder on the path that Python will put there for the program."""
    folder = _program_folder()
    if folder is not None:
        sys.path.insert(0, folder)
    try:
        for name in names:
            __import__(name)
    finally:
        if folder is not None:
            sys.path.remove(folder)


def _program_folder() -> str | None:
    if sys.flags.safe_path:
        return None
    if sys.argv[:1] == ["-m"]:
        return os.getcwd()  # noqa: PTH109 - pathlib would stay loaded
    program = os.path.realpath(sys.argv[0])
    return program if os.path.isdir(program) else os.path.dirname(program)  # noqa: PTH112, PTH120 - as above


def _unfit(reads: Collection[str]) -> str:
    """Why this process must not become a rank, empty if it may."""
    if reads:
        return f"an import reads {', '.join(sorted(reads))}, which is not known before the round"
    site = sys.modules["site"]
    if site.ENABLE_USER_SITE and _origin("usercustomize", sys.meta_path, None, None):
        return "there is a usercustomize, which has to run before the imports"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "an import made a CUDA context"
    return ""


def _become_a_rank(line: _Line) -> None:
    """Wait for the place in the world, and be what a process that starts now would be."""
    size, wait_ms = line.read_number(), line.read_number()
    entries = line.read(size).split(b"\0") if size else []
    line.close()
    if wait_ms:
        select: Any = __import__("select")
        select.select((), (), (), wait_ms / 1000)
    for entry in entries:
        name, _, value = entry.partition(b"=")
        os.environb[name] = value
    for finder in list(sys.path_importer_cache.values()):
        forget = getattr(finder, "invalidate_caches", None)
        if forget is not None:
            forget()  # what was written to the folders meanwhile is seen
    logging: Any = sys.modules.get("logging")
    if logging is not None:  # its records tell the time since the start
        clock: Any = __import__("time")
        started = logging._startTime  # noqa: SLF001 - it offers no other way
        logging._startTime = clock.time_ns() if isinstance(started, int) else clock.time()  # noqa: SLF001 - as above


def _surroundings() -> dict[str, object]:
    return {
        **os.environ,
        "(CPU affinity)": os.sched_getaffinity(0),
        "(dlopen flags)": sys.getdlopenflags(),
    }


def _origin(name: str, finders: Any, path: Any, target: Any) -> str:
    for finder in list(finders):
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return str(spec.origin)
    return ""


if _HOOK in os.environ:
    _hook()
else:  # a child of a rank that was given the rank's first environment
    _take_out(has_path=os.pathsep in os.environ.get("PYTHONPATH", ""))
    _users_own()
