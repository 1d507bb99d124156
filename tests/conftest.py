"""For every test: nothing may be left behind, no product code may block the event loop, and programs that a test
starts find the product without an install."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
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
WIDER = pytest.StashKey[list[leaks.Resources]]()
SESSION = uuid.uuid4().hex


def pytest_configure(config: pytest.Config) -> None:
    """Mark all that descends from this session, let it import the working tree, and rooms their own kits."""
    config.stash[WIDER] = []
    os.environ[leaks.MARK] = SESSION
    sys.path.extend(str(room) for room in sorted(Path(__file__).parent.iterdir()) if room.is_dir())
    inherited = os.environ.get("PYTHONPATH")
    paths = [*(str(root.parent) for root in ROOTS), *([inherited] if inherited else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Look at what exists before any fixture of the test."""
    item.stash[BEFORE] = leaks.take(SESSION)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """What a fixture of a wider scope brings up outlives the test that asked first."""
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
    left = leaks.left_over(SESSION, allowed)
    assert not left, f"{item.nodeid} left behind:\n  " + "\n  ".join(left)
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every coroutine test is checked for tasks that outlive it, before the loop's end cancels them."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        owner = getattr(item.obj, "hypothesis", None)
        if owner is not None and inspect.iscoroutinefunction(owner.inner_test):
            owner.inner_test = _without_leftover_tasks(owner.inner_test)
        elif inspect.iscoroutinefunction(item.obj):
            item.obj = _without_leftover_tasks(item.obj)


TestFunction = Callable[..., Coroutine[Any, Any, None]]


def _without_leftover_tasks(function: TestFunction) -> TestFunction:
    @functools.wraps(function)
    async def checked(*args: Any, **kwargs: Any) -> None:
        before = asyncio.all_tasks()
        await function(*args, **kwargs)
        await asyncio.sleep(0)  # a task that was just cancelled or told to end does so in this turn
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
        assert not left, f"tasks outlived the test: {left}"

    return checked


@pytest.fixture(autouse=True)
def _product_never_blocks_the_loop() -> Iterator[None]:
    """Law 5's other half: a blocking call under a product frame in a running loop fails the test."""
    blocking = BlockBuster(scanned_modules=[root.name for root in ROOTS])
    blocking.functions["threading.Lock.acquire"].can_block_predicate = _joins_grpcs_poller
    blocking.activate()
    yield
    blocking.deactivate()


def _joins_grpcs_poller(*_: Any, **__: Any) -> bool:
    """The one exception: when its last channel or server is collected, grpc.aio joins its own poller thread."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "join" and isinstance(frame.f_locals.get("self"), threading.Thread):
            return str(frame.f_locals["self"].name).endswith("(_poll_wrapper)")
        frame = frame.f_back
    return False
