"""Says in JSON everything that a program could notice of how it was started. Run cold and warm, and compared."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import warnings

import heavy


class Thing:
    """Pickled by its name in `__main__`."""

    def __init__(self, value: int) -> None:
        self.value = value


def descriptors() -> dict[str, str]:
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        with contextlib.suppress(OSError):  # the listing's own
            found[name] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
    return found


def status() -> dict[str, str]:
    names = ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd", "Threads", "Umask", "NoNewPrivs")
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    return {name: lines[name] for name in names}


def environment() -> dict[str, object]:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    names = ("RANK", "MASTER_PORT", "PYTHONPATH", "NVRX_HOOK", "LOCAL_RANK")
    return {
        "python": dict(os.environ),
        "libc": {name: (getenv(name.encode()) or b"-").decode() for name in names},
        "child": sorted(subprocess.check_output(["env"], text=True).splitlines()),
    }


def interpreter() -> dict[str, object]:
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "flags": str(sys.flags),
        "path": sys.path,
        "modules": sorted(name for name in sys.modules),
        "meta_path": [str(finder) for finder in sys.meta_path],
        "path_hooks": len(sys.path_hooks),
        "executable": [sys.executable, sys.prefix, sys.base_prefix, str(sys.pycache_prefix)],
        "xoptions": sys._xoptions,
        "warnoptions": sys.warnoptions,
        "filters": str(warnings.filters),
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "hooks": [str(sys.gettrace()), str(sys.getprofile()), sys.excepthook is sys.__excepthook__],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "streams": [
            (
                stream.name,
                stream.encoding,
                stream.errors,
                stream.line_buffering,
                getattr(stream, "write_through", None),
                stream.isatty(),
            )
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "environ": [type(os.environ).__name__, sorted(vars(os.environ)), os.environ.encodekey.__qualname__],
    }


def program() -> dict[str, object]:
    main = sys.modules["__main__"]
    return {
        "names": sorted(vars(main)),
        "file": main.__file__,
        "name": main.__name__,
        "package": main.__package__,
        "spec": str(main.__spec__),
        "loader": type(main.__loader__).__name__,
        "doc": main.__doc__,
        "frames": frames(),
        "pickled": pickle.loads(pickle.dumps(Thing(7))).value,
        "where": Thing.__module__,
        "heavy": [heavy.__file__, heavy.SEEN, str(heavy.__spec__.origin)],
        "users": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    }


def frames() -> list[str]:
    frame, found = sys._getframe(), []
    while frame is not None:
        found.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found


def process() -> dict[str, object]:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return {
        "signals": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "mask": sorted(mask),
        "wakeup": signal.set_wakeup_fd(-1),
        "status": status(),
        "descriptors": descriptors(),
        "cwd": os.getcwd(),
        "leader": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "policy": [
            os.sched_getscheduler(0),
            os.getpriority(os.PRIO_PROCESS, 0),
            sorted(os.sched_getaffinity(0)),
        ],
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        },
        "threads": [thread.name for thread in threading.enumerate()],
        "main thread": threading.current_thread() is threading.main_thread(),
    }


def child(connection: object) -> None:
    facts = {
        "env": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv,
        "heavy": "heavy" in sys.modules,
        "hook": [name for name in sys.modules if "sitecustomize" in name],
        "thing": Thing(8).value,
        "descriptors": sorted(descriptors().values()),
    }
    connection.send(facts)  # type: ignore[attr-defined]


def children() -> dict[str, object]:
    found: dict[str, object] = {}
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        worker = context.Process(target=child, args=(theirs,))
        worker.start()
        found[method] = ours.recv()
        worker.join()
        ours.close()
        theirs.close()
    bare = "import sys, os, json; print(json.dumps([sys.path, dict(os.environ), sorted(sys.modules)]))"
    said = subprocess.check_output([sys.executable, "-c", bare], text=True).splitlines()
    found["subprocess"] = [said[:-1], json.loads(said[-1])]
    return found


def finish(name: str) -> None:
    print(f"atexit {name}")


def main() -> None:
    facts = {"process": process(), "interpreter": interpreter(), "program": program()}
    facts |= {"environment": environment(), "children": children()}
    atexit.register(finish, "first")
    atexit.register(finish, "second")
    print(json.dumps(facts))
    print("no line feed", end="")
    threading.Thread(target=lambda: finish("thread")).start()
    raise RuntimeError("the end of the probe")


if __name__ == "__main__":
    main()
