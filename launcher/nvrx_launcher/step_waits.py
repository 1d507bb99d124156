"""Who wants to know when this node's ranks have come to a step (`nvrx wait --for step=N`), without anybody polling.

The least step that is wanted stands on each rank's page; a rank that comes to it says so on its socket, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio

from nvrx_async.job.conditions import MOST_STEP
from nvrx_async.job.live import REACHED_WITHIN_S
from nvrx_async.probe import QuestionRefusedError
from nvrx_async.ranklink.page import H_TELL, Page

MOST = 64
"""Questions that may wait here at once."""
SEEN_AFTER_S = 0.01
"""Longer than a processor holds a write back: a rank that has not seen the word has its step on the page by then."""


class StepWaits:
    """The questions that wait. `pages`: those of a round's ranks, None where it is not the one that is watched."""

    def __init__(self, pages: Callable[[int], Iterable[Page] | None]) -> None:
        self._pages = pages
        self._wanted: dict[object, int] = {}
        self._news = anyio.Event()

    def news(self) -> None:
        """A rank has come to a step that was wanted, or the round is over."""
        self._news.set()
        self._news = anyio.Event()

    async def answer(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """A handler of the probe port: answers once all ranks of `round` here have come to `step`.

        Within `within_s` (of at most `REACHED_WITHIN_S`), with `reached` false: whoever asks then asks again.

        Raises:
            QuestionRefusedError: that round is not watched here, or too many wait already.
        """
        number, step, within_s = payload.get("round"), payload.get("step"), payload.get("within_s")
        if not (isinstance(number, int) and isinstance(step, int) and isinstance(within_s, int | float)):
            raise QuestionRefusedError("a round, a step and a time are needed")
        if not 0 <= step <= MOST_STEP:
            raise QuestionRefusedError(f"a step is a number from 0 to {MOST_STEP}")
        if len(self._wanted) >= MOST:
            raise QuestionRefusedError(f"{MOST} others wait for a step here already")
        token = object()
        self._wanted[token] = step
        try:
            with anyio.move_on_after(min(within_s, REACHED_WITHIN_S)):
                await self._reached(number, step)
                return {"reached": True}
            return {"reached": False}
        finally:
            del self._wanted[token]
            self._say_on(self._pages(number) or ())

    async def _reached(self, number: int, step: int) -> None:
        while True:
            news = self._news
            self._say_on(self._watched(number))
            await anyio.sleep_until(anyio.current_time() + SEEN_AFTER_S)
            if all(_has_come(page, step) for page in self._watched(number)):
                return
            await news.wait()

    def _watched(self, number: int) -> Iterable[Page]:
        pages = self._pages(number)
        if pages is None:
            raise QuestionRefusedError("no rank of that round is watched here")
        return pages

    def _say_on(self, pages: Iterable[Page]) -> None:
        """Write on each page the next step that its rank is to tell of."""
        for page in pages:
            ahead = [step for step in self._wanted.values() if not _has_come(page, step)]
            page.words[H_TELL] = min(ahead) + 1 if ahead else 0


def _has_come(page: Page, step: int) -> bool:
    come = page.view(time.monotonic_ns()).step
    return come is not None and come >= step
