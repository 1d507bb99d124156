"""For every test: nothing may be left behind, no product code may block the event loop, and programs that a test
starts find the product without an install."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from blockbuster import BlockBuster
from support import leaks
from support.source import ROOTS

hypothesis.settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile(
    "soak",
    max_examples=3000,
    deadline=None,
    stateful_step_count=100,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

BEFORE = pytest.StashKey[leaks.Resources]()
AFTER = pytest.StashKey[leaks.Resources]()
WIDER = pytest.StashKey[list[leaks.Resources]]()
SESSION = uuid.uuid4().hex


def pytest_configure(config: pytest.Config) -> None:
    """Mark all that descends from this session, let it import the working tree, and rooms their own kits."""
    config.stash[WIDER] = []
    config.pluginmanager.register(WiderFixtures())
    os.environ[leaks.MARK] = SESSION
    if getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(WholeRun())
    # A shell ignores SIGINT for what it starts in the background; programs under test are to get it all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.extend(str(room) for room in sorted(Path(__file__).parent.iterdir()) if room.is_dir())
    # Tests start hundreds of interpreters: without byte code each would compile the product anew, and pytest all tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    inherited = os.environ.get("PYTHONPATH")
    paths = [*(str(root.parent) for root in ROOTS), *([inherited] if inherited else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


class WholeRun:
    """Shared memory that tests in several processes leave behind, looked at when all of them are gone."""

    def __init__(self) -> None:
        self.before = leaks.shared_memory()
        self.left: list[str] = []

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Fail the run for what is left: around the end of the processes, inside the one that prints the summary."""
        yield
        self.left = leaks.left_in_shared_memory(self.before)
        if self.left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name it."""
        for name in self.left:
            terminalreporter.write_line(f"ERROR the tests left behind: /dev/shm/{name}", red=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Look at what exists before any fixture of the test; orphans of an agent are nobody's here."""
    leaks.adopt_no_orphans()
    # Looking takes as long as many a test: what was there after the last one is what is there before the next.
    item.stash[BEFORE] = item.config.stash.get(AFTER, None) or leaks.take(SESSION)
    return (yield)


class WiderFixtures:
    """What a fixture of a wider scope brings up outlives the test that asked first.

    A plugin of its own: hooks of a conftest are not asked about fixtures of the session.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Note what came with it."""
        if fixturedef.scope == "function":
            return (yield)
        before = leaks.take(SESSION)
        result = yield
        request.config.stash[WIDER].append(leaks.take(SESSION) - before)
        return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Look again when all fixtures of the test are gone."""
    result = yield
    allowed = functools.reduce(leaks.Resources.__or__, item.config.stash[WIDER], item.stash[BEFORE])
    left, item.config.stash[AFTER] = leaks.settled(SESSION, allowed)
    assert not left, f"{item.nodeid} left behind:\n  " + "\n  ".join(left)
    return result


def pytest_collection_finish() -> None:
    """What is there for good by now, items and modules, is looked through by no later collection of garbage.

    Tests collect after what they close: with thousands of items at hand each time would take a third of a second.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every coroutine test is checked for tasks that outlive it, before the loop's end cancels them."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        owner = getattr(item.obj, "hypothesis", None)
        if owner is not None and inspect.iscoroutinefunction(owner.inner_test):
            owner.inner_test = leaks.without_leftover_tasks(owner.inner_test)
        elif inspect.iscoroutinefunction(item.obj):
            item.obj = leaks.without_leftover_tasks(item.obj)


@pytest.fixture(autouse=True)
def _product_never_blocks_the_loop() -> Iterator[None]:
    """Law 5's other half: a blocking call under a product frame in a running loop fails the test."""
    blocking = BlockBuster(scanned_modules=[root.name for root in ROOTS], excluded_modules=[_keeper()])
    for name, function in blocking.functions.items():
        if name == "threading.Lock.acquire":
            function.can_block_predicate = _either(function.can_block_predicate, _joins_grpcs_poller)
        elif name.startswith(("io.", "os.listdir", "os.scandir", "os.read")):
            function.can_block_predicate = _either(function.can_block_predicate, _is_of_proc)
    # Until exec only, and not in a thread: the kernel ties parent-death signals to threads.
    blocking.functions["os.read"].can_block_in("nvrx_async/etcd/process.py", {"__init__"})
    blocking.activate()
    yield
    blocking.deactivate()


def _either(*predicates: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *args, **kwargs: any(predicate(*args, **kwargs) for predicate in predicates)


def _is_of_proc(subject: Any = "", *_: Any, **__: Any) -> bool:
    """A folder or file of /proc, which is the kernel's memory: no device to wait for."""
    path = (
        os.readlink(f"/proc/self/fd/{subject}")
        if isinstance(subject, int)
        else getattr(subject, "name", subject)
    )
    return str(path).startswith("/proc/") or path == "/proc"


def _keeper() -> types.ModuleType:
    """Its package runs in a process of its own, without a loop; tests call it directly. The slash spares neighbours."""
    package = types.ModuleType("keeper")
    package.__path__ = [f"{ROOTS[1] / 'keeper'}/"]
    return package


def _joins_grpcs_poller(*_: Any, **__: Any) -> bool:
    """When its last channel or server is collected, grpc.aio joins its own poller thread."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "join" and isinstance(frame.f_locals.get("self"), threading.Thread):
            return str(frame.f_locals["self"].name).endswith("(_poll_wrapper)")
        frame = frame.f_back
    return False
