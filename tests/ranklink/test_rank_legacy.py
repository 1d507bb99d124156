"""NVIDIA's calls land on the page as ours do, and none of them can hurt the training."""

from __future__ import annotations

import inspect
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nvrx_async
from nvrx_async.ranklink.messages import PAGE_VARIABLE, SOCKET_VARIABLE, STACKS_VARIABLE
from nvrx_async.ranklink.page import Page, PageView
from nvrx_async.ranklink.rank_legacy import RankMonitorClient, RankMonitorClientError

# Public calls of RankMonitorClient in nvidia-resiliency-ext 0.7.0 with their parameters; 0.4.1 has some of them.
CALLS = {
    "init_workload_monitoring": ["num_warmup_iters"],
    "shutdown_workload_monitoring": [],
    "send_heartbeat": [],
    "start_section": ["section"],
    "end_section": ["section"],
    "end_all_sections": [],
    "calculate_and_set_hb_timeouts": ["skip_if_not_ready"],
    "calculate_and_set_section_timeouts": ["selected_sections", "calc_out_of_section", "skip_if_not_ready"],
    "state_dict": [],
    "load_state_dict": ["state"],
    "send_workload_control_request": ["req"],
}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    page = Page.create(5, 3)
    monkeypatch.setenv(PAGE_VARIABLE, page.path)
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "nobody.sock"))
    monkeypatch.delenv(STACKS_VARIABLE, raising=False)
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("NVRX_ROUND", "5")):
        monkeypatch.setenv(name, value)
    yield page
    page.close()


@pytest.fixture
def client(page: Page) -> Iterator[RankMonitorClient]:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    yield client
    client.shutdown_workload_monitoring()


def seen(page: Page) -> PageView:
    return page.view(time.monotonic_ns())


def opened(page: Page) -> set[str]:
    return {one.name for one in seen(page).sections}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_there_with_its_parameters(name: str) -> None:
    parameters = inspect.signature(getattr(RankMonitorClient, name)).parameters
    assert [one for one in parameters if one != "self"] == CALLS[name]


def test_a_training_by_heartbeats(page: Page) -> None:
    client = RankMonitorClient()
    assert not client.is_initialized
    client.init_workload_monitoring(num_warmup_iters=3)
    assert client.is_initialized
    assert seen(page).is_ready
    client.send_heartbeat()
    first = seen(page).principal
    client.send_heartbeat()
    second = seen(page).principal
    assert first is not None
    assert second is not None
    assert (first.reports, second.reports) == (1, 2)
    assert second.last_s > first.last_s
    assert seen(page).done_s is None
    client.shutdown_workload_monitoring()
    assert seen(page).done_s is not None
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()
    assert seen(page).done_s is None
    client.shutdown_workload_monitoring()


def test_what_is_open_at_the_end_is_closed(page: Page) -> None:
    client = RankMonitorClient()
    for times in (1, 2):
        client.init_workload_monitoring()
        client.start_section("save")
        assert opened(page) == {"save"}
        client.shutdown_workload_monitoring()
        assert opened(page) == set()
        assert [one.seen for one in seen(page).names] == [times]


def test_sections_nest_overlap_and_end_together(page: Page, client: RankMonitorClient) -> None:
    client.start_section("setup")
    client.start_section("load")
    assert opened(page) == {"setup", "load"}
    client.end_section("setup")
    assert opened(page) == {"load"}
    client.start_section("step")
    client.end_all_sections()
    assert opened(page) == set()
    assert seen(page).principal.open_sections == 0
    names = {one.name: one.seen for one in seen(page).names}
    assert names == {"setup": 1, "load": 1, "step": 1}


def test_the_thread_that_has_steps_is_the_one_that_trains(page: Page, client: RankMonitorClient) -> None:
    """Whichever had connected: else a training in a side thread is late with its first report for ever."""

    def trains() -> None:
        client.start_section("step")
        client.end_section("step")

    assert seen(page).principal is None
    training = threading.Thread(target=trains)
    training.start()
    training.join()
    principal = seen(page).principal
    assert principal is not None
    assert principal.ident == training.ident
    client.start_section("checkpointing")
    client.end_section("checkpointing")
    assert seen(page).principal.ident == training.ident


def test_what_is_out_of_order_is_told_and_hurts_nobody(
    page: Page, client: RankMonitorClient, capfd: pytest.CaptureFixture[str]
) -> None:
    client.start_section("twice")
    client.start_section("twice")
    client.end_section("twice")
    client.end_section("twice")
    assert opened(page) == set()
    said = capfd.readouterr().err
    assert "section twice was started twice" in said
    assert "section twice was ended without a start" in said
    with pytest.raises(RankMonitorClientError, match="was called before"):
        client.init_workload_monitoring()


@pytest.mark.parametrize(
    "call",
    [name for name in CALLS if "state" not in name and not name.startswith(("init", "shut", "send_w"))],
)
def test_without_a_connection_calls_say_so(call: str) -> None:
    arguments = ["x"] if "section" in CALLS[call] else []
    with pytest.raises(RankMonitorClientError, match="has not been called"):
        getattr(RankMonitorClient(), call)(*arguments)


def test_limits_are_learned_without_being_asked_for(
    client: RankMonitorClient, capfd: pytest.CaptureFixture[str]
) -> None:
    assert client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
    assert client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    state = json.loads(json.dumps(client.state_dict()))
    client.load_state_dict(state)
    client.load_state_dict({})
    assert capfd.readouterr().err == ""
    theirs = {"heartbeat": {"initial": 9.0, "subsequent": 3.0, "were_calculated": True}}
    client.load_state_dict({"current_timeouts": theirs})
    assert "are not used" in capfd.readouterr().err


def test_requests_say_what_to_do_instead(client: RankMonitorClient) -> None:
    with pytest.raises(RuntimeError, match="NonRetryable"):
        client.send_workload_control_request("WorkloadControlRequest(ShutdownWorkload)")


def test_the_rank_is_at_hand(page: Page, client: RankMonitorClient) -> None:
    client.rank.progress(step=7)
    assert seen(page).principal.step == 7
    with nvrx_async.connect() as rank:
        assert rank is client.rank
    assert seen(page).done_s is None


def test_outside_of_nvrx_launch_calls_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PAGE_VARIABLE, raising=False)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("step")
    client.send_heartbeat()
    client.end_section("step")
    assert not client.rank.connected
    client.shutdown_workload_monitoring()
