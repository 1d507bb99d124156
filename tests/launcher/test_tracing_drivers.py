"""The watch over ranks as telemetry has it: what their pages say of their starts, whatever they write there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nvrx_async.ranklink.page import H_FIRST_STEP, H_HELLO, H_SECOND_STEP, NS, Page
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.tracing_drivers import TracedWatch
from nvrx_launcher.tracing_rank_starts import RankStart


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page.create(4, 0)
    yield made
    made.close()


@pytest.fixture
def watch(page: Page) -> Any:
    made: Any = TracedWatch.__new__(TracedWatch)
    closed: list[str] = []
    made._round = SimpleNamespace(
        assignment=SimpleNamespace(round=4), pages={0: page}, close=lambda: closed.append("pages")
    )
    made.steps = SimpleNamespace(news=lambda: None)
    made.witness = SimpleNamespace(ranks_left=lambda *told: closed.append(told))
    made.closed = closed
    return made


def test_moments_that_are_none_are_not_told(watch: Any, page: Page) -> None:
    """No span begins before 1970: its exporter would end all others."""
    page.words[H_HELLO], page.words[H_FIRST_STEP], page.words[H_SECOND_STEP] = -1, 0, -(1 << 63)
    assert watch._starts(4) == {0: RankStart()}
    assert watch._starts(5) == {}


def test_how_far_ranks_came_is_told_before_their_pages_go(watch: Any, page: Page) -> None:
    page.words[H_HELLO] = 7 * NS
    watch._close()
    ((number, starts), pages) = watch.closed
    assert (number, pages) == (4, "pages")
    assert 0 < starts[0].hello_s <= boottime_s()
    watch._close()
    assert len(watch.closed) == 2, "there is nothing left to tell"
