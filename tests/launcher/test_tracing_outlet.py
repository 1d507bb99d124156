"""Where spans and metrics leave: a host that has no thread left for it loses the telemetry, not the job."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from nvrx_launcher.tracing_outlet import Outlet
from nvrx_telemetry import semconv
from nvrx_telemetry.setup import telemetry_config
from nvrx_telemetry.turns import Turns

pytestmark = pytest.mark.anyio
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def warned() -> list[str]:
    return []


@pytest.fixture
def outlet(warned: list[str]) -> Iterator[Outlet]:
    config, _ = telemetry_config({}, NOWHERE, 9464)
    assert config is not None
    made = Outlet(config, {}, Turns(), warned.append)
    yield made
    assert made._pipe is not None
    made._pipe.close()


async def test_where_no_thread_is_left_nothing_is_raised(
    outlet: Outlet, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    outlet.measure(semconv.METRIC_RESTARTS, 1, {})
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        await outlet.start_metrics()
        assert await outlet.exposition() == ""
        outlet.ends()
        await outlet.close()
    assert len(warned) == 2
    assert all("can't start new thread" in line for line in warned)


async def test_metrics_begin_once_a_thread_is_there(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        await outlet.start_metrics()
    outlet.measure(semconv.METRIC_RESTARTS, 1, {})
    await outlet.start_metrics()
    assert "nvrx_restarts_total 1" in await outlet.exposition()
    outlet.ends()
    await outlet.close()
